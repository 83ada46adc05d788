// The page: the store's table, a section's cards, filters, colours, printing and following a running tuning.
"use strict";

const page = document.getElementById("page");
const state = { document: null, sections: [], cards: [], sorts: {}, words: "", route: null, choices: {}, filters: new Map() };

/** A card that draws its chart once it is seen. `draw` returns an option, or null for an empty one. */
class Card {
  constructor(title, draw, { note, controls, size = "", height, body } = {}) {
    this.draw = draw;
    this.body = body;
    this.box = body || make("div", { class: "chart", style: height ? `height: ${height}px` : "" });
    this.noteBox = make("p", { class: "note" }, note || "");
    this.element = make("section", { class: `card ${size}` }, make("div", { class: "head" }, make("h2", {}, title), controls ? make("div", { class: "controls" }, controls) : null), this.noteBox, body ? this.box : make("div", { class: "pan" }, this.box));
    this.noteBox.hidden = !note;
    this.isSeen = false;
  }

  show() {
    this.isSeen = true;
    this.update();
  }

  update() {
    if (!this.isSeen) return;
    if (this.body) {
      this.draw();
      return;
    }
    const option = this.draw(this);
    if (option === undefined) return;
    if (!option || typeof option === "string") {
      if (this.chart) this.chart.dispose();
      this.chart = null;
      this.box.replaceChildren(make("p", { class: "empty" }, typeof option === "string" ? option : "No measured config passes the filters."));
      return;
    }
    if (!this.chart) {
      this.box.replaceChildren();
      this.chart = echarts.init(this.box, null, { renderer: "canvas" });
      if (this.wire) this.wire(this.chart);
    }
    this.chart.setOption(option, { notMerge: true });
  }

  say(note) {
    this.noteBox.textContent = note;
    this.noteBox.hidden = !note;
  }

  dispose() {
    if (this.chart) this.chart.dispose();
    this.chart = null;
  }
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = state.cards.find((one) => one.element === entry.target);
    if (!entry.isIntersecting || !card || card.isSeen) continue;
    seen.unobserve(entry.target);
    card.show();
  }
}, { rootMargin: "300px" });

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = echarts.getInstanceByDom(target);
    if (chart && !state.printing) chart.resize();
  }
});

function picker(options, chosen, change) {
  return make("select", { onchange: (event) => change(event.target.value) }, options.map(([value, label]) => make("option", { value, selected: String(value) === String(chosen) }, label)));
}

function choice(options, chosen, change) {
  const buttons = options.map(([value, label]) => make("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
    for (const [i, button] of buttons.entries()) button.setAttribute("aria-pressed", String(options[i][0] === value));
    change(value);
  } }, label));
  return make("span", { class: "switch" }, buttons);
}

function tile(label, value, note, kind = "") {
  return make("div", { class: `tile ${kind}` }, make("div", { class: "label" }, label), make("div", { class: "value" }, value), note ? make("div", { class: "note" }, note) : null);
}

function named(kernel) {
  const at = kernel.lastIndexOf(":");
  return [make("span", { class: "project" }, kernel.slice(0, at + 1)), kernel.slice(at + 1)];
}

function badge(standing) {
  return make("span", { class: `badge ${["fresh", "stale", "failed", "untuned"].includes(standing.status) ? standing.status : "unknown"}`, title: (standing.reasons || []).join("\n") }, standing.status);
}

function noisyBadge() {
  return make("span", { class: "badge noisy", title: "It varies, or is further from the others, than is likely: measured on a busy machine?" }, "noisy");
}

/** Copy a text. A notebook's frame may not use the clipboard's API, but may copy what is selected. */
function copy(text, button) {
  const area = make("textarea", { style: "position: fixed; opacity: 0" });
  area.value = text;
  button.after(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  button.focus();
  return isCopied;
}

const COPIED_MS = 1500;

function copyButton(label, text) {
  const button = make("button", { class: "plain copy", type: "button", title: text, onclick: (event) => {
    event.stopPropagation();
    button.textContent = copy(text, button) ? "copied" : "not copied";
    setTimeout(() => { button.textContent = label; }, COPIED_MS);
  } }, label);
  return button;
}

/** Return the command that measures a config again. */
function tuneCommand(plain, config) {
  const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const pairs = (values) => word(Object.entries(values).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${value}`).join(","));
  const problem = Object.keys(plain.problem).length ? ["-p", pairs(plain.problem)] : [];
  return ["ktuned", "tune", word(plain.kernel), ...problem, "--device", word(plain.device), "--config", pairs(config), "--remeasure"].join(" ");
}

/** Return the size of a section's space, after the number of configs that were tried. */
function ofSpace(plain) {
  return plain.space_size === null ? "" : ` of ${plain.is_constrained ? "at most " : ""}${plain.space_size.toLocaleString("en")}`;
}

/** Show everything about one trial: its figures, its config, how it was compiled and the files that are kept. */
async function showTrial(section, id) {
  const { plain } = section;
  section.builds ??= JSON.parse(new TextDecoder().decode(await inflate(plain.builds)));
  const row = section.ids.indexOf(id);
  const config = section.config(row);
  const build = section.builds[id];
  const message = section.message.values[section.message.codes[row]];
  const path = (shown, place) => make("li", {}, make("a", { href: `file://${place.split("/").map(encodeURIComponent).join("/")}`, target: "_blank" }, shown));
  const files = build ? build.files.map((place) => path(place, place)) : [];
  const dialog = make("dialog", { onclose: () => dialog.remove(), onclick: (event) => { if (event.target === dialog) dialog.close(); } },
    make("div", { class: "about" },
      make("div", { class: "chips" }, copyButton("copy config", JSON.stringify(config)), copyButton("copy command", tuneCommand(plain, config)), make("button", { class: "plain close", type: "button", "aria-label": "close", onclick: () => dialog.close() }, "×")),
      trialTip(section, row),
      message ? make("pre", {}, message) : null,
      build && build.command.length ? [make("h3", {}, "compiler", copyButton("copy", build.command.join("\n"))), make("pre", {}, build.command.join("\n"))] : null,
      build ? null : make("p", { class: "note" }, `How it was compiled: ktuned results --trial ${id}`),
      plain.file || files.length ? [make("h3", {}, "source and artifact"), make("ul", { class: "files" }, plain.file ? path(plain.file, plain.file.replace(/:\d+$/, "")) : null, files)] : null));
  document.body.append(dialog);
  dialog.showModal();
}

/** Return a button that shows a trial. */
function trialButton(section, id, label) {
  return make("button", { class: "linked", type: "button", onclick: (event) => {
    event.stopPropagation();
    showTrial(section, id);
  } }, label);
}

function gain(plain, name) {
  const [winner, other] = ["winner", name].map((one) => barOf(plain, one));
  return winner && other ? other.latency_us / winner.latency_us : null;
}

function sortable(key, columns, rows, more = {}) {
  const table = make("table");
  const draw = () => {
    const sort = state.sorts[key];
    const sorted = sort === undefined ? rows : [...rows].sort((a, b) => {
      const [x, y] = [a.values[sort.column], b.values[sort.column]];
      const isLess = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y), undefined, { numeric: true }) : (Number.isFinite(x) ? x : Infinity) - (Number.isFinite(y) ? y : Infinity);
      return sort.down ? -isLess : isLess;
    });
    table.replaceChildren(
      make("thead", {}, make("tr", {}, columns.map((column, i) => make("th", { class: column.right ? "right" : "", onclick: () => {
        state.sorts[key] = { column: i, down: sort && sort.column === i ? !sort.down : Boolean(column.down) };
        draw();
      } }, column.name, sort && sort.column === i ? (sort.down ? " ↓" : " ↑") : "")))),
      make("tbody", {}, sorted.slice(0, more.limit || Infinity).map((row) => make("tr", { class: row.kind || "", onclick: row.open }, row.cells.map((cell, i) => make("td", { class: columns[i].class || (columns[i].right ? "right" : "") }, cell))))),
    );
  };
  draw();
  return make("div", { class: "scroll" }, table);
}

function storePage() {
  const { sections } = state;
  const plains = sections.map((section) => section.plain);
  const gains = plains.map((plain) => gain(plain, "default")).filter((value) => value !== null).sort((a, b) => a - b);
  const stale = plains.filter((plain) => plain.standing.status === "stale").length;
  const trials = plains.reduce((sum, plain) => sum + plain.trials.count + plain.left_out, 0);
  const devices = [...new Set(plains.map((plain) => plain.device))];
  const widest = Math.max(...gains, 1);
  const winnerOf = (plain, name) => (plain.winner ? plain.winner[name] : NaN);
  const columns = [
    { name: "kernel", class: "text", value: (plain) => plain.kernel, cell: (plain, id) => make("a", { href: `#${encodeURIComponent(id)}` }, plain.kernel) },
    { name: "problem", class: "mono", value: (plain) => flat(plain.problem) },
    // What is the same in every row is in the heading.
    devices.length > 1 && { name: "device", value: (plain) => plain.device },
    { name: "winner", right: true, value: (plain) => winnerOf(plain, "latency_us"), cell: (plain) => latency(winnerOf(plain, "latency_us")) },
    { name: "config", class: "mono config", value: (plain) => flat(winnerOf(plain, "config")), cell: (plain) => (plain.winner ? [flat(plain.winner.config), " ", copyButton("copy", JSON.stringify(plain.winner.config))] : "–") },
    { name: "vs. default", down: true, class: "one", value: (plain) => gain(plain, "default") ?? NaN, cell: (plain) => {
      const faster = gain(plain, "default");
      return faster === null ? "–" : [make("i", { class: "gain", style: `width: ${Math.max(2, (Math.min(faster, widest) / widest) * 70)}px` }), `${faster.toFixed(2)}×`];
    } },
    { name: "vs. reference", right: true, down: true, value: (plain) => gain(plain, "reference") ?? NaN, cell: (plain) => {
      const faster = gain(plain, "reference");
      return faster === null ? "–" : [times(faster), isDoubtful(plain, barOf(plain, "reference")) ? noisyBadge() : ""];
    } },
    plains.some((plain) => plain.share) && { name: "of the device's limit", right: true, down: true, value: (plain) => (plain.share ? plain.share.share : NaN), cell: (plain) => (plain.share ? describeShare(plain.share) : "–") },
    { name: "state", value: (plain) => plain.standing.status, cell: (plain) => badge(plain.standing) },
    { name: "configs", right: true, down: true, value: (plain) => plain.tried, cell: (plain) => `${plain.tried.toLocaleString("en")}${ofSpace(plain)}` },
    { name: "decided", down: true, class: "one", value: (plain) => winnerOf(plain, "decided"), cell: (plain) => (plain.winner ? day(plain.winner.decided) : "–") },
  ].filter(Boolean);
  const rows = sections.filter(({ plain }) => `${plain.kernel} ${flat(plain.problem)} ${plain.device} ${plain.standing.status}`.toLowerCase().includes(state.words)).map((section) => ({
    kind: "link", open: () => { location.hash = section.id; },
    values: columns.map((column) => column.value(section.plain)),
    cells: columns.map((column) => (column.cell || column.value)(section.plain, section.id)),
  }));
  const search = make("input", { type: "search", placeholder: "Filter by kernel, problem, device, state", size: 38, value: state.words, oninput: (event) => {
    state.words = event.target.value.toLowerCase();
    const at = event.target.selectionStart;
    storePage();
    const again = page.querySelector("input[type=search]");
    again.focus();
    again.setSelectionRange(at, at);
  } });
  clear();
  page.append(
    make("h1", {}, "Tuned kernels"),
    make("p", { class: "sub" }, devices.join(" · ")),
    make("div", { class: "tiles" },
      tile("kernels", String(new Set(plains.map((plain) => plain.kernel)).size), `${count(plains.length, "problem")} on ${count(devices.length, "device")}`, "lead"),
      tile("median gain", gains.length ? `${quantile(gains, 0.5).toFixed(2)}×` : "–", gains.length ? `vs. default, up to ${widest.toFixed(2)}×` : "no default was measured"),
      tile("trials", trials.toLocaleString("en"), `${plains.reduce((sum, plain) => sum + plain.failures.reduce((s, one) => s + one.count, 0), 0).toLocaleString("en")} of them failed`),
      tile("stale", String(stale), stale ? "something changed since they were measured" : "all winners hold")),
    make("section", { class: "card wide" }, make("div", { class: "head" }, make("h2", {}, "Winners"), make("div", { class: "controls" }, search)), sections.length ? sortable("store", columns, rows) : make("p", { class: "empty" }, "Nothing has been tuned yet.")),
    footer(),
  );
  crumbs(null);
}

function footer() {
  return make("footer", {}, `Made by ktuned ${state.document.version} on ${day(state.document.made)}. Latencies are medians; spreads are those of the middle half of the samples.`);
}


function clear() {
  for (const card of state.cards) card.dispose();
  state.cards = [];
  seen.disconnect();
  resized.disconnect();
  page.replaceChildren();
}

function crumbs(section) {
  const box = document.getElementById("crumb");
  box.replaceChildren();
  if (state.sections.length > 1) {
    box.append(picker([["", "all kernels"], ...state.sections.map((one) => [one.id, one.title])], section ? section.id : "", (id) => { location.hash = id ? encodeURIComponent(id) : ""; }));
  }
  document.title = section ? `${section.plain.kernel} · ktuned` : "ktuned report";
}

async function sectionPage(section) {
  await section.open();
  if (state.route !== section.id) return;
  const { plain } = section;
  const old = state.filters.get(section.id);
  const filters = new Filters(section);
  if (old) {
    filters.allowed = old.allowed;
    filters.apply();
  }
  state.filters.set(section.id, filters);
  clear();
  page.append(heading(section), tiles(section), isCharted(section) ? filterBar(section, filters) : "");
  const cards = cardsOf(section, filters);
  page.append(make("div", { class: "grid" }, cards.map((card) => card.element)), footer());
  state.cards = cards.flatMap((card) => [card, ...(card.parts || [])]);
  filters.listeners.push(() => { for (const card of state.cards) if (card.follows !== false) card.update(); });
  for (const card of cards) {
    seen.observe(card.element);
    if (!card.body) resized.observe(card.box);
    for (const part of card.parts || []) resized.observe(part.box);
  }
  crumbs(section);
}

function heading(section) {
  const { plain } = section;
  const config = plain.winner ? Object.entries(plain.winner.config) : [];
  return make("div", {},
    make("h1", {}, named(plain.kernel), badge(plain.standing)),
    make("p", { class: "sub" }, `${flat(plain.problem)} on ${plain.device}`),
    config.length ? make("div", { class: "chips", title: "The winner's config; what differs from the default is marked." }, config.map(([knob, value]) => make("span", { class: `chip${plain.default && plain.default[knob] !== value ? " differs" : ""}` }, make("i", {}, `${knob}=`), scalar(value))), copyButton("copy config", JSON.stringify(plain.winner.config)), copyButton("copy command", tuneCommand(plain, plain.winner.config))) : null,
    (plain.standing.reasons || []).length ? make("ul", { class: "reasons" }, plain.standing.reasons.map((reason) => make("li", {}, reason))) : null,
    plain.winner && plain.winner.note ? make("p", { class: "sub" }, plain.winner.note) : null,
    make("ul", { class: "insights" }, insights(section).map((sentence) => make("li", {}, sentence)), make("li", { id: "unexplained" })),
    (plain.others || []).map((other) => make("p", { class: "sub other" }, otherWinner(other))),
    (plain.numerics || []).map((line) => make("p", { class: "sub numerics" }, line)));
}

// A limit that was measured beside other programs may be higher.
const describeShare = (share) => `${share.at_most ? "at most " : ""}${percent(share.share)} of ${share.of}`;
const NEAR_LIMIT = 0.7; // of a device's limit: what is left is less than most searches find

/** Return what the figures say in plain sentences: what may be gained yet, where registers spill, what is doubtful. */
function insights(section) {
  const { plain } = section;
  const found = [];
  const [job] = plain.jobs;
  if (!plain.winner && job && job.message) found.push(`No winner: ${job.message}`);
  const { share } = plain;
  if (share && !share.at_most && share.share >= NEAR_LIMIT) found.push(`${describeShare(share)}: little is left to gain.`);
  const spills = section.facts.find((one) => /spill/.test(one.name));
  const rows = spills ? Array.from(spills.values.keys()).filter((row) => Number.isFinite(spills.values[row])) : [];
  const spilling = rows.filter((row) => spills.values[row] > 0);
  if (spilling.length && spilling.length < rows.length) {
    for (const knob of section.knobs) {
      if (!knob.values.every((value) => typeof value === "number")) continue;
      const from = Math.min(...spilling.map((row) => knob.values[knob.codes[row]]));
      const below = rows.filter((row) => knob.values[knob.codes[row]] < from);
      // Every config from this value on spills, and none below it does.
      if (below.length && below.length + spilling.length === rows.length) {
        found.push(`Registers spill from ${knob.name} ≥ ${from}.`);
        break;
      }
    }
  } else if (spilling.length && spilling.length === rows.length) found.push("Every config spills registers.");
  found.push(...edges(section));
  if (isCharted(section) && !plain.roof && /(^| )tflops/.test(section.metrics.map((one) => one.name).join(" "))) found.push("`ktuned doctor --peaks` measures the device's limits, for a roofline.");
  const [winner, reference] = ["winner", "reference"].map((name) => barOf(plain, name));
  if (plain.winner && section.winnerRow >= 0 && section.winnerRow === section.defaultRow && section.count > 1) found.push("The default is the winner: no other config is faster.");
  if (winner && reference && reference.latency_us < winner.latency_us) found.push(`The reference is ${(winner.latency_us / reference.latency_us).toFixed(2)}× as fast as the winner.`);
  if (isImplausible(plain)) found.push(`Noisy: the reference took ${Math.round(reference.latency_us / winner.latency_us).toLocaleString("en")} times the winner's time. Was the machine busy, and does it compute the same?`);
  if (winner && isNoisy(winner)) found.push(`Noisy: the winner's figure is known to ±${figure((winner.spread_us / winner.latency_us) * 50, 2)} % alone.`);
  return found;
}

const FEWEST_STEPS = 3; // of two values one is always at the end

/** Return a sentence for each knob whose winning number is the space's first or last, where the latency falls all the way to it. */
function edges(section) {
  if (section.winnerRow < 0) return [];
  return section.varied.flatMap(({ knob, i: place }) => {
    if (!knob.values.every((value) => typeof value === "number")) return [];
    const fastest = byValue(section, Array.from(section.isMeasured.keys()).filter((row) => section.isMeasured[row]), knob).map((group) => group[0]).filter((value) => value !== undefined);
    const code = knob.codes[section.winnerRow];
    const [isFirst, isLast] = [code === 0, code === knob.values.length - 1];
    // A value that was not tried may lie beyond.
    if (!(isFirst || isLast) || !section.plain.ends[place].includes(knob.values[code])) return [];
    if (fastest.length < FEWEST_STEPS || fastest.length < knob.values.length) return [];
    const towards = isFirst ? fastest.reverse() : fastest;
    if (!towards.every((value, i) => i === 0 || value < towards[i - 1])) return [];
    return [`${knob.name}=${knob.labels[code]} is the ${isFirst ? "smallest" : "largest"} value of its knob, and the latency falls towards it: a ${isFirst ? "smaller" : "larger"} one may be faster.`];
  });
}

/** Return the winner by another objective in words. */
function otherWinner(other) {
  const better = other.gain ? `, ${other.gain.toFixed(2)}× as good as the winner by latency (${figure(other.fastest)} ${other.unit})` : "";
  return `By ${other.winner.objective}: ${figure(other.figure)} ${other.unit}${better}, ${latency(other.winner.latency_us)} with ${flat(other.winner.config)}`;
}

function tiles(section) {
  const { plain } = section;
  const found = [];
  const measured = section.isMeasured.reduce((sum, bit) => sum + bit, 0);
  const spread = (bar) => (bar && bar.spread_us !== null ? `±${figure((bar.spread_us / bar.latency_us) * 50, 2)} %` : "");
  const winner = barOf(plain, "winner");
  if (winner) found.push(tile("winner", latency(winner.latency_us), [`${spread(winner)} ${plain.winner.is_final ? "after a final round" : "no final round yet"}`.trim(), isNoisy(winner) ? noisyBadge() : null], "lead"));
  for (const name of ["default", "reference"]) {
    const bar = barOf(plain, name);
    if (bar && winner) found.push(tile(`vs. ${name}`, times(bar.latency_us / winner.latency_us), [`${latency(bar.latency_us)} ${spread(bar)}`, isDoubtful(plain, bar) ? noisyBadge() : null]));
  }
  const { share } = plain;
  if (share) found.push(tile(`${share.at_most ? "at most, " : ""}of ${share.of}`, percent(share.share), `${figure(plain.winner.metrics[share.metric])} ${share.metric === BANDWIDTH ? "GB/s" : "TFLOP/s"}`));
  found.push(tile("configs", [plain.tried.toLocaleString("en"), make("small", {}, ofSpace(plain))], `${measured.toLocaleString("en")} measured${plain.left_out ? `; ${section.count.toLocaleString("en")} on this page` : ""}`));
  const cost = plain.jobs.reduce((sum, job) => sum + (job.cost.wall_s || 0), 0);
  if (cost) found.push(tile("tuning", duration(cost), count(plain.jobs.length, "job")));
  return make("div", { class: "tiles" }, found);
}

function filterBar(section, filters) {
  const menus = [["outcome", section.outcome.values, section.outcome.codes, "outcome"], ...section.knobs.filter((knob) => knob.values.length > 1).map((knob) => [knob.name, knob.labels, knob.codes, `knob ${knob.name}`])].filter(([, values]) => values.length > 1);
  const bar = make("div", { class: "filters" });
  const boxes = menus.map(([name, labels, codes, key]) => {
    const counts = new Uint32Array(labels.length);
    for (const code of codes) counts[code]++;
    const summary = make("summary", {});
    const inputs = labels.map((label, code) => make("input", { type: "checkbox", onchange: () => {
      const chosen = new Set(inputs.flatMap((input, i) => (input.checked ? [i] : [])));
      filters.set(key, chosen.size === 0 || chosen.size === labels.length ? null : chosen);
    } }));
    const details = make("details", {}, summary, make("div", { class: "menu" }, labels.map((label, code) => make("label", {}, inputs[code], make("span", {}, label), make("em", {}, counts[code].toLocaleString("en"))))));
    details.addEventListener("toggle", () => { if (details.open) for (const other of bar.querySelectorAll("details")) if (other !== details) other.open = false; });
    return { name, labels, key, summary, inputs, details };
  });
  const said = make("span", { class: "count" });
  const reset = make("button", { class: "plain", type: "button", onclick: () => filters.clear() }, "Clear");
  const draw = () => {
    for (const { name, labels, key, summary, inputs, details } of boxes) {
      const chosen = filters.allowed.get(key);
      summary.textContent = chosen ? `${name}: ${[...chosen].sort((a, b) => a - b).map((code) => labels[code]).join(", ")}` : name;
      details.classList.toggle("set", Boolean(chosen));
      for (const [i, input] of inputs.entries()) input.checked = chosen ? chosen.has(i) : false;
    }
    reset.hidden = filters.allowed.size === 0;
    said.textContent = `${filters.shown.toLocaleString("en")} of ${count(section.count, "trial")}`;
  };
  filters.listeners.push(draw);
  draw();
  bar.append(...boxes.map(({ details }) => details), reset, said);
  return bar;
}

function remembered(name, start) {
  return { get value() { return state.choices[name] ?? start; }, set value(now) { state.choices[name] = now; } };
}

const FEWEST_CHARTED = 8;

/** Return whether there are enough measured configs for charts; of fewer the table says all. */
function isCharted(section) {
  return section.isMeasured.reduce((sum, bit) => sum + bit, 0) >= FEWEST_CHARTED;
}

function cardsOf(section, filters) {
  const { plain } = section;
  const some = (draw) => (card) => (filters.measured.length ? draw(card) : null);
  const cards = [];
  const isDrawn = isCharted(section);
  const varied = isDrawn ? section.varied : [];

  const by = remembered("by", "trials");
  const sofar = new Card("Best so far", some(() => bestSoFar(section, filters, colours(), by.value)), { size: plain.bars.length > 1 ? "most" : "wide", height: 330, controls: choice([["trials", "trials"], ["seconds", "seconds"]], by.value, (value) => { by.value = value; sofar.update(); }) });
  if (isDrawn) cards.push(sofar);
  if (plain.bars.length > 1) {
    const bars = new Card("Winner, default, reference", () => beside(section, colours()), { size: isDrawn ? "third" : "wide", height: isDrawn ? 330 : 50 + 50 * plain.bars.length, note: "The whiskers hold the middle half of the samples." });
    bars.follows = false;
    cards.push(bars);
  }
  const roofs = isDrawn ? roofOf(section) : null;
  const spread = new Card("Distribution of latencies", some((self) => distribution(self, section, filters, colours())));
  const hasModel = varied.length > 0 && section.isMeasured.reduce((sum, bit) => sum + bit, 0) >= MIN_TRIALS;
  let arrange = () => {};
  let showMatters = () => spread.element.classList.toggle("wide", !roofs);
  const unexplained = remembered(`${section.id} unexplained`, "");
  let matters = null;
  if (hasModel) {
    matters = new Card("Which knobs matter", some((self) => {
      const model = filters.model;
      if (filters.modelOf !== filters.mask) {
        // Learning takes some tenths of a second: everything else is drawn first.
        clearTimeout(filters.timer);
        filters.timer = setTimeout(() => {
          importance(section, filters);
          arrange(filters.model.knobs.map((one) => one.name));
          unexplained.value = filters.model.absence || "";
          showMatters();
          matters.update();
        }, 50);
        return model && !model.absence ? importanceOf(self, model, colours()) : undefined;
      }
      self.say(`By boosted trees that explain ${percent(model.fit)} of the variance of configs that they have not seen. The whiskers hold 95 % of ${MODELS} models.`);
      return model.absence || importanceOf(self, model, colours());
    }), { height: Math.max(190, 54 + Math.min(14, varied.length) * 26), note: "Learning from the trials…" });
    cards.push(matters);
    // A model that explains nothing is a sentence; its neighbour takes its room.
    showMatters = () => {
      matters.element.hidden = Boolean(unexplained.value);
      spread.element.classList.toggle("wide", !unexplained.value === Boolean(roofs));
      document.getElementById("unexplained").textContent = unexplained.value;
    };
  }
  if (roofs) cards.push(new Card("Roofline", some(() => roofline(section, filters, colours(), roofs, state.sections)), { height: 330, note: "Each point is a config, by the operations and bytes that its kernel file declares. Rings: winners of the kernel's other problems." }));
  if (isDrawn) cards.push(spread);
  showMatters();
  // A card that is hidden is never scrolled to.
  if (hasModel && unexplained.value) matters.show();
  if (varied.length) {
    const minis = make("div", { class: "minis" });
    const parts = varied.map(({ knob }) => {
      const part = new Card(knob.name, some(() => againstKnob(section, filters, colours(), knob)));
      part.element.className = "mini";
      part.element.firstChild.replaceWith(make("h3", {}, knob.name));
      part.wire = (chart) => chart.on("click", (event) => {
        const code = event.componentType === "xAxis" ? knob.labels.indexOf(event.value) : event.dataIndex;
        if (code >= 0) filters.toggle(`knob ${knob.name}`, code, knob.values.length);
      });
      minis.append(part.element);
      return part;
    });
    const card = new Card("Latency against each knob", () => { for (const part of parts) if (!part.isSeen) part.show(); }, { size: "wide", note: "Line: the fastest config with this value. Box: the middle half; whiskers: 5 % to 95 %. A click on a value filters by it.", body: minis });
    card.parts = parts;
    card.follows = false;
    arrange = (names) => minis.append(...names.map((name) => parts[varied.findIndex(({ knob }) => knob.name === name)].element));
    cards.push(card);
  }
  if (varied.length > 1) {
    const [a, b, stat] = [remembered(`${section.id} a`, varied[0].i), remembered(`${section.id} b`, varied[1].i), remembered("stat", "best")];
    const names = varied.map(({ knob, i }) => [i, knob.name]);
    const pickers = [picker(names, a.value, (value) => { a.value = value; map.update(); }), "×", picker(names, b.value, (value) => { b.value = value; map.update(); })];
    const map = new Card("Pairs of knobs", some(() => heatMap(section, filters, colours(), Number(a.value), Number(b.value), stat.value)), { height: 360, controls: [...pickers,  choice([["best", "fastest"], ["median", "median"]], stat.value, (value) => { stat.value = value; map.update(); })] });
    cards.push(map);
    const inOrder = arrange;
    arrange = (important) => {
      inOrder(important);
      if (state.choices[`${section.id} a`] !== undefined || state.choices[`${section.id} b`] !== undefined) return;
      if (important.length < 2) return;
      [a.value, b.value] = important.slice(0, 2).map((name) => section.knobs.findIndex((knob) => knob.name === name));
      [pickers[0].value, pickers[2].value] = [a.value, b.value];
      map.update();
    };
  }
  const offered = axesOf(section);
  const axes = offered.map((one, i) => [i, one.name]);
  const isVaried = (one) => new Set(Array.from(filters.measured, one.values).filter(Number.isFinite)).size > 1;
  const across = [...section.facts.map((fact) => fact.name), "compile seconds"].map((name) => offered.findIndex((one) => one.name === name)).find((i) => isVaried(offered[i])) ?? 1;
  const [x, y, kind] = [remembered(`${section.id} x`, across), remembered(`${section.id} y`, 0), remembered(`${section.id} kind`, -1)];
  const free = new Card("Any two figures", some(() => explore(section, filters, colours(), Number(x.value), Number(y.value), Number(kind.value))), { size: varied.length > 1 ? "" : "wide", height: 360, controls: [picker(axes, x.value, (value) => { x.value = value; free.update(); }), "×", picker(axes, y.value, (value) => { y.value = value; free.update(); }), picker([[-1, "one colour"], ...varied.map(({ knob, i }) => [i, `by ${knob.name}`])], kind.value, (value) => { kind.value = value; free.update(); })] });
  if (isDrawn) cards.push(free);
  if (varied.length > 1) cards.push(parallelCard(section, filters, some));
  if (plain.failures.length) cards.push(failuresCard(section));
  const hasHistory = statesOf(plain).length > 1;
  if (hasHistory) {
    const card = new Card("History of the winner", () => history(section, colours()), { size: plain.failures.length ? "" : "wide", height: 330, note: "The fastest config after each change of the sources, the toolchain or the driver. The larger point is what this page shows." });
    card.follows = false;
    cards.push(card, savesCard(section));
  }
  const worked = timelineCard(section);
  if (worked) cards.push(worked);
  if (section.best >= 0) cards.push(tableCard(section, filters));
  return cards;
}

/** Return the states of the sources that something was measured in. */
function statesOf(plain) {
  return plain.history.filter((save) => save.trials.best);
}

/** Return a card with the fastest configs of two saves in columns, and what changed from one save to the other. */
function savesCard(section) {
  const saves = statesOf(section.plain);
  const shown = Math.max(1, saves.findIndex((save) => save.is_shown));
  const chosen = [shown - 1, shown].map((place, side) => remembered(`${section.id} save ${side}`, place));
  const names = saves.map((save, i) => [i, `${i + 1}: ${day(save.trials.first)}`]);
  const box = make("div");
  const card = new Card("Two saves side by side", () => {
    const [left, right] = chosen.map((side) => saves[Number(side.value)].trials);
    const knobs = [...new Set([section.knobs.map((knob) => knob.name), ...[left, right].map((trials) => Object.keys(trials.best.config))].flat())];
    const rows = [
      ["fastest", latency(left.best.figure), `${latency(right.best.figure)} (${times(right.best.figure / left.best.figure)})`],
      ["measured", ...[left, right].map((trials) => `${trials.measured.toLocaleString("en")} of ${count(trials.trials, "config")}`)],
      ...knobs.map((knob) => [knob, ...[left, right].map((trials) => scalar(trials.best.config[knob]))]),
    ].map((row, i) => make("tr", { class: i > 1 && row[1] !== row[2] ? "best" : "" }, row.map((cell, j) => make("td", { class: j && i > 1 ? "mono" : "" }, cell))));
    const [from, to] = chosen.map((side) => Number(side.value)).sort((a, b) => a - b);
    const changes = [...new Set(saves.slice(from + 1, to + 1).flatMap((save) => save.changes))];
    box.replaceChildren(
      make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th"), chosen.map((side) => make("th", {}, picker(names, side.value, (value) => { side.value = value; card.update(); }))))), make("tbody", {}, rows))),
      make("ul", { class: "reasons" }, changes.map((change) => make("li", {}, change))));
  }, { size: "wide", body: box, note: "Marked knobs differ between the fastest configs of both. Below: what changed from the one to the other." });
  card.follows = false;
  return card;
}

function parallelCard(section, filters, some) {
  let shown = [];
  const card = new Card("Configs as lines", some((self) => {
    const found = parallel(self, section, filters, colours());
    shown = found.shown;
    self.say(`${found.lines < filters.measured.length ? `The fastest ${MAX_LINES / 3} and a sample of the others, ${found.lines} of ${filters.measured.length.toLocaleString("en")} configs` : count(found.lines, "config")}. Drag along an axis to keep only what crosses there.`);
    return found.option;
  }), { size: "wide", height: 380, note: " " });
  card.wire = (chart) => chart.on("axisareaselected", (event) => {
    for (const { parallelAxisId, intervals } of event.batch || [event]) {
      const knob = shown.find((one) => `knob ${one.knob.name}` === parallelAxisId);
      if (!knob) continue;
      const codes = knob.knob.values.flatMap((_, code) => ((intervals || []).some(([from, to]) => code >= Math.min(from, to) - 0.5 && code <= Math.max(from, to) + 0.5) ? [code] : []));
      card.follows = false;
      filters.set(parallelAxisId, (intervals || []).length && codes.length ? new Set(codes) : null);
      card.follows = true;
    }
  });
  return card;
}

function failuresCard(section) {
  const { plain } = section;
  const most = Math.max(...plain.failures.map((one) => one.count));
  const totals = new Map();
  for (const one of plain.failures) totals.set(one.outcome, (totals.get(one.outcome) || 0) + one.count);
  const list = make("ul", { class: "failures" }, plain.failures.map((one) => make("li", {},
    make("div", { class: "line" }, make("span", { class: "kind" }, one.outcome.replaceAll("_", " ")), make("span", { class: "times" }, `${one.count.toLocaleString("en")}×`), make("span", { class: "meter" }, make("i", { style: `width: ${(one.count / most) * 100}%` }))),
    make("div", { class: "said" }, one.message || "no message"),
    make("div", { class: "where" }, trialButton(section, one.trial, `trial ${one.trial}`), `: ${flat(one.config)}`))));
  const note = [...totals].sort((a, b) => b[1] - a[1]).map(([outcome, number]) => `${number.toLocaleString("en")} ${outcome.replaceAll("_", " ")}`).join(", ");
  const card = new Card("Failures", () => {}, { body: list, note, size: statesOf(plain).length > 1 ? "" : "wide" });
  card.follows = false;
  return card;
}

function timelineCard(section) {
  const jobs = section.plain.jobs.map((job) => [job, spansOf(section, job.id)]).filter(([, found]) => found.spans.length);
  if (!jobs.length) return null;
  const chosen = remembered(`${section.id} job`, jobs[0][0].id);
  const note = (job, found) => {
    const end = endOf(found.spans);
    const sum = (kind) => found.order.filter((row) => row.kind === kind).reduce((total, row) => total + row.busy, 0);
    const rows = (kind) => found.order.filter((row) => row.kind === kind).length;
    const waits = waiting(found);
    const parts = [];
    if (rows("compile")) parts.push(`compiling ${duration(sum("compile"))} in ${count(rows("compile"), "slot")} (${percent(sum("compile") / end / rows("compile"))} busy)`);
    if (rows("lane")) parts.push(`measuring ${duration(sum("lane"))} on ${count(rows("lane"), "lane")} (${percent(sum("lane") / end / rows("lane"))} busy)`);
    if (waits !== null) parts.push(`a compiled config waited ${duration(waits)} for its lane, in the median`);
    if (job.cost.finalists_s) parts.push(`final round ${duration(job.cost.finalists_s)}`);
    if (job.cost.wall_s) parts.push(`the whole job ${duration(job.cost.wall_s)}`);
    const said = parts.join("; ");
    return `${said[0].toUpperCase()}${said.slice(1)}.`;
  };
  const get = () => jobs.find(([job]) => job.id === Number(chosen.value)) || jobs[0];
  const card = new Card("Where the time went", (self) => {
    const [job, found] = get();
    self.say(note(job, found));
    self.box.style.height = `${Math.max(150, 90 + found.order.length * 30)}px`;
    if (self.chart) self.chart.resize();
    return timeline(section, colours(), found);
  }, { size: "wide", note: " ", height: 200, controls: jobs.length > 1 ? picker(jobs.map(([job]) => [job.id, `job ${job.id}, ${job.reason}`]), chosen.value, (value) => { chosen.value = value; card.update(); }) : null });
  card.follows = false;
  return card;
}

/** Return the median time between the end of a config's compile and the begin of its measuring. */
function waiting(found) {
  const compiled = new Map();
  for (const span of found.spans) if (span[4] === "compile") compiled.set(span[3], span[2]);
  const waits = found.spans.filter((span) => span[4] === "lane" && compiled.has(span[3])).map((span) => Math.max(0, span[1] - compiled.get(span[3])));
  return waits.length ? quantile(Float64Array.from(waits).sort(), 0.5) : null;
}

const ROWS = 25;

function tableCard(section, filters) {
  const box = make("div");
  let limit = ROWS;
  const card = new Card("Fastest configs", () => {
    const rows = Array.from(filters.measured).sort((a, b) => section.latency[a] - section.latency[b]).slice(0, Math.max(limit, 400));
    const best = section.best >= 0 ? section.latency[section.best] : NaN;
    const figures = [...section.metrics, ...section.facts].filter((one) => rows.some((row) => Number.isFinite(one.values[row])));
    const columns = [{ name: "latency", right: true }, { name: "vs. best", right: true }, { name: "spread", right: true }, ...section.knobs.map((knob) => ({ name: knob.name, class: "mono" })), ...figures.map((one) => ({ name: one.name.replaceAll("_", " "), right: true })), { name: "trial", right: true }];
    const made = rows.map((row) => ({
      kind: row === section.winnerRow ? "link best" : "link", open: () => showTrial(section, section.ids[row]),
      values: [section.latency[row], section.latency[row], section.spread[row], ...section.knobs.map((knob) => knob.codes[row]), ...figures.map((one) => one.values[row]), section.ids[row]],
      cells: [`${row === section.winnerRow ? "★ " : ""}${latency(section.latency[row])}`, `${(section.latency[row] / best).toFixed(3)}×`, section.spread[row] > 0 ? latency(section.spread[row], 2) : "–", ...section.knobs.map((knob) => knob.labels[knob.codes[row]]), ...figures.map((one) => figure(one.values[row])), trialButton(section, section.ids[row], String(section.ids[row]))],
    }));
    const more = made.length > limit ? make("button", { class: "plain more", type: "button", onclick: () => { limit *= 4; card.update(); } }, "More") : null;
    box.replaceChildren(...[made.length ? sortable(`${section.id} table`, columns, made, { limit }) : make("p", { class: "empty" }, "No measured config passes the filters."), more].filter(Boolean));
  }, { size: "wide", body: box, note: "A star marks the winner; a click on a config shows how it was compiled. Final rounds measure again: the order of close configs is theirs." });
  return card;
}

function route() {
  if (!state.document) return;
  let id = "";
  try {
    id = decodeURIComponent(location.hash.slice(1));
  } catch {
    id = "";
  }
  const section = state.sections.find((one) => one.id === id) || (state.sections.length === 1 ? state.sections[0] : null);
  const before = state.route;
  state.route = section ? section.id : "";
  if (before !== null && before !== state.route) {
    scrollTo(0, 0);
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  }
  if (section) return sectionPage(section);
  storePage();
  return undefined;
}

function take(found) {
  state.document = found;
  state.sections = found.sections.map((plain) => new Section(plain));
  document.getElementById("made").textContent = day(found.made);
}

function redraw() {
  for (const card of state.cards) {
    card.dispose();
    card.update();
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("click", (event) => {
  for (const details of document.querySelectorAll(".filters details[open]")) if (!details.contains(event.target)) details.open = false;
});
addEventListener("hashchange", route);

const PRINT_WIDTH = 680;

addEventListener("beforeprint", () => {
  state.printing = document.documentElement.dataset.theme || "none";
  document.documentElement.dataset.theme = "light";
  for (const card of state.cards) {
    card.isSeen = true;
    card.dispose();
    if (!card.body) card.box.style.width = card.element.className === "mini" ? `${PRINT_WIDTH / 3 - 14}px` : `${PRINT_WIDTH}px`;
    card.update();
    if (card.chart) card.chart.getZr().flush();
    // A chart that is scrolled on the screen is made smaller on paper.
    if (!card.body) card.box.style.zoom = Math.min(1, parseFloat(card.box.style.width) / card.box.offsetWidth);
  }
});
addEventListener("afterprint", () => {
  if (state.printing === "none") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.printing;
  state.printing = null;
  for (const card of state.cards) if (!card.body) card.box.style.width = card.box.style.zoom = "";
  redraw();
});

(async () => {
  const library = document.createElement("script");
  library.textContent = new TextDecoder().decode(await inflate(document.getElementById("library").textContent));
  document.head.append(library);
  take(JSON.parse(document.getElementById("document").textContent));
  await route();
  document.documentElement.dataset.ready = "true";
})();
