// The document's values: columns of trials, filters over them, and figures as text.
"use strict";

const MEASURED = "measured";

async function inflate(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return each column by its name: `{codes, values}`, or a Float64Array in which NaN stands for an absent value. */
async function unpack(packed) {
  const plain = JSON.parse(new TextDecoder().decode(await inflate(packed.data)));
  return new Map(Object.entries(plain).map(([name, column]) => [name, column.codes ? column : numbers(column)]));
}

function numbers(column) {
  if (!column.steps) return Float64Array.from(column, (value) => value ?? NaN);
  let now = 0;
  return Float64Array.from(column.steps, (step) => (now += step) * column.unit);
}

/** One kernel, problem and device, with its trials unpacked. */
class Section {
  constructor(plain) {
    this.plain = plain;
    this.title = `${plain.kernel} [${flat(plain.problem)}] on ${plain.device}`;
  }

  get id() {
    return JSON.stringify([this.plain.kernel, this.plain.problem, this.plain.device]);
  }

  async open() {
    if (this.columns) return this;
    const columns = await unpack(this.plain.trials);
    this.columns = columns;
    this.count = this.plain.trials.count;
    const get = (name) => columns.get(name);
    this.ids = get("id");
    this.outcome = get("outcome");
    this.latency = get("latency");
    this.spread = get("spread");
    this.compileS = get("compile_s");
    this.laneS = get("lane_s");
    this.ended = get("ended");
    this.job = get("job");
    this.message = get("message");
    this.knobs = this.plain.knobs.map((name, i) => {
      const column = get(`knob ${i}`);
      return { name, codes: column.codes, values: column.values, labels: column.values.map(scalar) };
    });
    this.facts = this.plain.facts.map((name, i) => ({ name, values: get(`fact ${i}`) }));
    this.metrics = this.plain.metrics.map((name, i) => ({ name, values: get(`metric ${i}`) }));
    this.isMeasured = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i++) {
      this.isMeasured[i] = this.outcome.values[this.outcome.codes[i]] === MEASURED && this.latency[i] > 0 ? 1 : 0;
    }
    // A knob that has one value among the measured configs explains nothing of their latencies.
    this.varied = this.knobs.map((knob, i) => ({ knob, i })).filter(({ knob }) => {
      const codes = new Set();
      for (let row = 0; row < this.count && codes.size < 2; row++) if (this.isMeasured[row]) codes.add(knob.codes[row]);
      return codes.size > 1;
    });
    this.best = -1;
    for (let i = 0; i < this.count; i++) {
      if (this.isMeasured[i] && (this.best < 0 || this.latency[i] < this.latency[this.best])) this.best = i;
    }
    this.winnerRow = this.plain.winner ? this.ids.indexOf(this.plain.winner.trial) : -1;
    this.defaultRow = this.rowOf(this.plain.default);
    this.seconds = this.tuningSeconds();
    return this;
  }

  rowOf(config) {
    if (!config) return -1;
    const codes = this.knobs.map((knob) => knob.values.findIndex((value) => value === (config[knob.name] ?? null)));
    for (let i = 0; i < this.count; i++) if (this.knobs.every((knob, k) => knob.codes[i] === codes[k])) return i;
    return -1;
  }

  config(row) {
    return Object.fromEntries(this.knobs.map((knob) => [knob.name, knob.values[knob.codes[row]]]));
  }

  /** Return for each trial the seconds of tuning until its end: the jobs' own times, one job after the other. */
  tuningSeconds() {
    const starts = new Map(this.plain.jobs.map((job) => [job.id, job.started]));
    const spans = new Map();
    for (let i = 0; i < this.count; i++) {
      const job = this.job.values[this.job.codes[i]];
      const span = spans.get(job) || [Infinity, -Infinity];
      spans.set(job, [Math.min(span[0], this.ended[i]), Math.max(span[1], this.ended[i])]);
    }
    const before = new Map();
    let total = 0;
    for (const [job, span] of [...spans].sort((a, b) => a[1][0] - b[1][0])) {
      const start = Math.min(starts.get(job) ?? span[0], span[0]);
      before.set(job, total - start);
      total += span[1] - start;
    }
    return Float64Array.from(this.ended, (at, i) => at + before.get(this.job.values[this.job.codes[i]]));
  }
}

/** The trials that the reader wants to see. Each knob has a set of allowed codes, or none; so has the outcome. */
class Filters {
  constructor(section) {
    this.section = section;
    this.allowed = new Map();
    this.listeners = [];
    this.apply();
  }

  set(name, codes) {
    if (codes === null) this.allowed.delete(name);
    else this.allowed.set(name, codes);
    this.apply();
    for (const listener of this.listeners) listener();
  }

  toggle(name, code, count) {
    const now = this.allowed.get(name);
    if (!now) this.set(name, new Set([code]));
    else {
      const next = new Set(now);
      if (!next.delete(code)) next.add(code);
      this.set(name, next.size === 0 || next.size === count ? null : next);
    }
  }

  clear() {
    this.allowed.clear();
    this.apply();
    for (const listener of this.listeners) listener();
  }

  apply() {
    const { section } = this;
    const mask = new Uint8Array(section.count).fill(1);
    for (const [name, codes] of this.allowed) {
      const column = name === "outcome" ? section.outcome : section.knobs.find((knob) => `knob ${knob.name}` === name);
      if (!column) continue;
      const isAllowed = new Uint8Array(column.values.length);
      for (const code of codes) isAllowed[code] = 1;
      for (let i = 0; i < section.count; i++) mask[i] &= isAllowed[column.codes[i]];
    }
    this.mask = mask;
    const rows = [];
    for (let i = 0; i < section.count; i++) if (mask[i] && section.isMeasured[i]) rows.push(i);
    this.measured = Uint32Array.from(rows);
    this.shown = mask.reduce((sum, bit) => sum + bit, 0);
  }
}

function quantile(sorted, share) {
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low);
}

function scalar(value) {
  return value === null || value === undefined ? "–" : typeof value === "number" ? figure(value, 7) : String(value);
}

/** A problem or a config in one line; of an application's call the types stand alone, behind the key's own fields. */
function flat(values) {
  const own = Object.entries(values || {}).filter(([key]) => !key.startsWith("@")).map(([key, value]) => `${key}=${scalar(value)}`);
  const types = (values || {})["@types"];
  return [...own, ...(types ? [types] : [])].join(" ") || "–";
}

function figure(value, digits = 4) {
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return String(Number(value.toPrecision(digits)));
}

function latency(us, digits = 4) {
  if (!(us >= 0) || us === null) return "–";
  const [value, unit] = us < 999.95 ? [us, "µs"] : us < 999950 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
  if (value === 0) return `0 ${unit}`;
  const before = Math.floor(Math.log10(value)) + 1;
  return `${value.toFixed(Math.max(0, digits - before))} ${unit}`;
}

function duration(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 1) return `${figure(s * 1e3, 3)} ms`;
  if (s < 90) return `${figure(s, 3)} s`;
  if (s < 5400) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.round(s / 86400)} d`;
}

/** Return a ratio as a factor: two digits behind the point, none of a large one. */
function times(ratio) {
  return `${ratio.toFixed(ratio < 100 ? 2 : 0)}×`;
}

function count(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

function day(s) {
  return new Date(s * 1e3).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

function percent(share, digits = 0) {
  return `${(share * 100).toFixed(digits)} %`;
}

/** Return an element; children are elements or texts, never HTML: names and messages are data. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
