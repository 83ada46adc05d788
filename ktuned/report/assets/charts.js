// The charts: each function returns ECharts' option for a section, its filters and the colours of the page.
"use strict";

function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    card: get("--card"), line: get("--line"), text: get("--text"), soft: get("--soft"), faint: get("--faint"),
    accent: get("--accent"), second: get("--second"), gold: get("--gold"), bad: get("--bad"), good: get("--good"),
    font: get("--font"), mono: get("--mono"),
  };
}

const KINDS = ["#4f8fd8", "#d98032", "#3aa37c", "#b763c9", "#c8aa2c", "#d35f7f", "#6f7fdc", "#5fa3ad", "#9a8160", "#7bae4a"];

function tip(title, pairs, note) {
  const rows = pairs.map((pair) => (pair === null ? make("hr") : make("div", { class: "pair" }, make("span", {}, pair[0]), make("span", {}, pair[1]))));
  return make("div", { class: "tip" }, title ? make("b", {}, title) : null, rows, note ? make("div", {}, note) : null);
}

// Both as in ktuned/model/noise.py.
const NOISY_SPREAD = 0.5;
const IMPLAUSIBLE_RATIO = 100;

/** Return whether a figure's spread is so wide that it says little. */
function isNoisy(bar) {
  return bar.spread_us !== null && bar.spread_us > NOISY_SPREAD * bar.latency_us;
}

/** Return whether a section's reference took longer than is likely to be true, beside its winner. */
function isImplausible(plain) {
  const [winner, reference] = [barOf(plain, "winner"), barOf(plain, "reference")];
  return Boolean(winner && reference) && reference.latency_us > IMPLAUSIBLE_RATIO * winner.latency_us;
}

/** Return whether a bar of a section is too doubtful to claim a gain over it. */
function isDoubtful(plain, bar) {
  return isNoisy(bar) || (bar.name === "reference" && isImplausible(plain));
}

function trialTip(section, row) {
  const best = section.best >= 0 ? section.latency[section.best] : NaN;
  const measured = section.isMeasured[row];
  const pairs = [["latency", measured ? latency(section.latency[row]) : section.outcome.values[section.outcome.codes[row]]]];
  if (measured) pairs.push(["vs. best", `${figure(section.latency[row] / best, 4)}×`]);
  if (section.spread[row] > 0) pairs.push(["spread", latency(section.spread[row], 2) + (section.spread[row] > NOISY_SPREAD * section.latency[row] ? " (noisy)" : "")]);
  pairs.push(null, ...section.knobs.map((knob) => [knob.name, knob.labels[knob.codes[row]]]));
  const further = [...section.metrics, ...section.facts].filter((one) => Number.isFinite(one.values[row]));
  if (further.length) pairs.push(null, ...further.slice(0, 12).map((one) => [one.name, figure(one.values[row])]));
  const marks = [row === section.winnerRow ? "winner" : "", row === section.defaultRow ? "default" : ""].filter(Boolean).join(", ");
  return tip(`trial ${section.ids[row]}${marks ? ` · ${marks}` : ""}`, pairs);
}

function frame(c, more = {}) {
  return {
    animation: false,
    textStyle: { fontFamily: c.font, color: c.soft },
    grid: { left: 62, right: 18, top: 22, bottom: 42, ...more.grid },
    tooltip: {
      confine: true, backgroundColor: c.card, borderColor: c.line, borderWidth: 1, padding: [7, 10], textStyle: { color: c.text, fontSize: 12.5 },
      extraCssText: "box-shadow: 0 6px 22px rgb(0 0 0 / 16%); border-radius: 8px;", ...more.tooltip,
    },
  };
}

function axis(c, more = {}) {
  const { axisLabel, ...rest } = more;
  return {
    nameLocation: "middle", nameGap: 28, nameTextStyle: { color: c.soft, fontSize: 12 },
    axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false }, splitLine: { lineStyle: { color: c.line, opacity: 0.7 } },
    axisLabel: { color: c.soft, fontSize: 11.5, hideOverlap: true, ...axisLabel }, ...rest,
  };
}

/** Return a latency axis: logarithmic where the range asks for it, with few round labels. */
function latencyAxis(c, low, high, more = {}) {
  const { axisLabel, ...rest } = more;
  const isLog = high / low > 3;
  const pad = isLog ? Math.pow(high / low, 0.04) : 1;
  const gap = Math.max((high - low) * 0.06, high * 0.02); // values that hardly differ leave room for labels that do
  const ticks = isLog ? { customValues: roundValues(low / pad, high * pad, rest.splitNumber || 5) } : {};
  return axis(c, {
    type: isLog ? "log" : "value", logBase: 10, min: isLog ? low / pad : Math.max(0, low - gap), max: isLog ? high * pad : high + gap,
    minorSplitLine: { show: false }, axisTick: { show: false, ...ticks }, axisLabel: { formatter: short, ...(isLog ? ticks : { showMinLabel: false, showMaxLabel: false }), ...axisLabel }, ...rest,
  });
}

/** Return round values within a range, at most so many: by 1, 2 and 5, by halves, or by decades. */
function roundValues(low, high, most) {
  for (const steps of [[1, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) for (const step of steps) found.push(step * 10 ** decade);
    const within = found.filter((value) => value >= low && value <= high);
    if (within.length <= most || steps.length === 1) return within;
  }
  return [];
}

function short(us) {
  return latency(us, 3).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
}

function extent(values, rows) {
  let low = Infinity;
  let high = -Infinity;
  for (const row of rows) {
    const value = values[row];
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function barOf(plain, name) {
  return plain.bars.find((bar) => bar.name === name);
}

const LABEL_HEIGHT = 14;

/**
 * Return the dashed lines of the default and the reference, named at their right ends. `place` gives a latency's height
 * in pixels: of lines that are closer than their names are high, the upper one has both names, one below the other.
 */
function levels(section, c, place) {
  const found = ["default", "reference"].map((name) => [name, barOf(section.plain, name)]).filter(([, bar]) => bar).sort((a, b) => b[1].latency_us - a[1].latency_us);
  const style = { fontSize: 11, lineHeight: LABEL_HEIGHT };
  const rich = { default: { color: c.second, ...style }, reference: { color: c.soft, ...style } };
  const isShared = found.length > 1 && Math.abs(place(found[0][1].latency_us) - place(found[1][1].latency_us)) < LABEL_HEIGHT;
  return found.map(([name, bar], i) => ({
    yAxis: bar.latency_us, name, lineStyle: { color: name === "default" ? c.second : c.soft, type: "dashed", width: 1.2 },
    label: { show: i === 0 || !isShared, position: "end", rich, formatter: (isShared ? found : [[name]]).map(([one]) => `{${one}|${one}}`).join("\n") },
  }));
}

const PLOT_HEIGHT = 240; // of the chart below, at the least

function bestSoFar(section, filters, c, by) {
  const rows = Array.from(filters.measured);
  const x = by === "seconds" ? (row) => section.seconds[row] : (row) => row + 1;
  rows.sort((a, b) => x(a) - x(b));
  const points = new Array(rows.length);
  const steps = [];
  let best = Infinity;
  rows.forEach((row, i) => {
    points[i] = [x(row), section.latency[row], row];
    if (section.latency[row] < best) {
      best = section.latency[row];
      steps.push([x(row), best, row]);
    }
  });
  let [low, high] = extent(section.latency, rows);
  const bars = ["default", "reference"].map((name) => barOf(section.plain, name)).filter(Boolean);
  for (const bar of bars) [low, high] = [Math.min(low, bar.latency_us), Math.max(high, bar.latency_us)];
  const isLog = high / low > 3;
  const marks = levels(section, c, (us) => (isLog ? Math.log(us / low) / Math.log(high / low) : (us - low) / (high - low || 1)) * PLOT_HEIGHT);
  const end = rows.length ? x(rows[rows.length - 1]) : 1;
  return {
    ...frame(c, { tooltip: { trigger: "item", formatter: (one) => (one.data && one.data[2] >= 0 ? trialTip(section, one.data[2]) : "") }, grid: { left: 74, right: bars.length ? 74 : 18 } }),
    xAxis: axis(c, { type: "value", min: 0, max: end, minInterval: by === "seconds" ? undefined : 1, name: by === "seconds" ? "seconds of tuning" : "trials", splitLine: { show: false }, axisLabel: { showMaxLabel: false } }),
    yAxis: latencyAxis(c, low, high),
    dataZoom: [{ type: "inside", xAxisIndex: 0, zoomOnMouseWheel: "ctrl" }],
    series: [
      { type: "scatter", data: points, symbolSize: rows.length > 5000 ? 2 : rows.length > 800 ? 3.5 : 5, large: true, largeThreshold: 4000, itemStyle: { color: c.faint, opacity: rows.length > 5000 ? 0.3 : 0.55 } },
      {
        type: "line", step: "end", data: steps.length ? [...steps, [end, best, -1]] : [], symbol: (value) => (value[2] >= 0 ? "circle" : "none"), symbolSize: 7, lineStyle: { color: c.accent, width: 2.4 },
        itemStyle: { color: c.accent, borderColor: c.card, borderWidth: 1.5 }, z: 5, markLine: { symbol: "none", silent: true, data: marks },
      },
    ],
  };
}

function whiskers(data, colour, at) {
  return {
    type: "custom", silent: true, z: 6, data, encode: { x: [1, 2], y: 0 },
    renderItem: (params, api) => {
      const y = api.coord([api.value(1), api.value(0)])[1];
      const left = api.coord([api.value(1), api.value(0)])[0];
      const right = api.coord([api.value(2), api.value(0)])[0];
      const style = { stroke: colour, lineWidth: 1.5 };
      const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
      return { type: "group", children: [line(left, y, right, y), line(left, y - at, left, y + at), line(right, y - at, right, y + at)] };
    },
  };
}

function beside(section, c) {
  const bars = [...section.plain.bars].reverse();
  const colour = { winner: c.accent, default: c.second, reference: c.faint };
  const high = Math.max(...bars.map((bar) => bar.latency_us + (bar.spread_us || 0) / 2));
  const winner = barOf(section.plain, "winner");
  return {
    ...frame(c, {
      grid: { left: 78, right: 130, bottom: 34, top: 8 },
      tooltip: {
        formatter: (one) => {
          const bar = bars[one.dataIndex];
          return tip(bar.name, [["latency", latency(bar.latency_us)], ["spread", bar.spread_us === null ? "–" : `${latency(bar.spread_us, 2)} (${percent(bar.spread_us / bar.latency_us, 1)})`]]);
        },
      },
    }),
    xAxis: axis(c, { type: "value", min: 0, max: high * 1.02, splitNumber: 3, axisLabel: { formatter: (value) => short(value), showMaxLabel: false } }),
    yAxis: axis(c, { type: "category", data: bars.map((bar) => bar.name), axisLabel: { color: c.text, fontSize: 12.5 }, splitLine: { show: false } }),
    series: [
      {
        type: "bar", barMaxWidth: 34, data: bars.map((bar) => ({ value: bar.latency_us, itemStyle: { color: colour[bar.name], borderRadius: [0, 4, 4, 0] } })),
      },
      {
        // The figure stands behind the whisker.
        type: "scatter", silent: true, symbolSize: 0.01, data: bars.map((bar, i) => [bar.latency_us + (bar.spread_us || 0) / 2, i]),
        label: {
          show: true, position: "right", distance: 10, color: c.text, fontSize: 12.5,
          formatter: (one) => `${latency(bars[one.dataIndex].latency_us)}${winner && bars[one.dataIndex] !== winner ? `  ${times(bars[one.dataIndex].latency_us / winner.latency_us)}` : ""}`,
        },
      },
      whiskers(bars.map((bar, i) => [i, Math.max(0, bar.latency_us - (bar.spread_us || 0) / 2), bar.latency_us + (bar.spread_us || 0) / 2]).filter((one) => one[1] < one[2]), c.text, 6),
    ],
  };
}

function importanceOf(card, model, c) {
  const knobs = model.knobs.slice(0, 14).reverse();
  const width = Math.min(card.box.clientWidth / 2, CHARACTER_WIDTH * Math.max(...knobs.map((knob) => knob.name.length)));
  const high = Math.max(...knobs.map((knob) => knob.high), 0.05);
  return {
    ...frame(c, {
      grid: { left: width + 12, right: 46, bottom: 40, top: 6 },
      tooltip: {
        formatter: (one) => {
          const knob = knobs[one.dataIndex];
          return tip(knob.name, [["share of the variance", percent(knob.share, 1)], ["95 % of the models", `${percent(knob.low, 1)} to ${percent(knob.high, 1)}`]]);
        },
      },
    }),
    xAxis: axis(c, { type: "value", min: 0, max: high * 1.08, name: "share of the variance of log latency", nameGap: 26, axisLabel: { formatter: (value) => percent(value), showMaxLabel: false } }),
    yAxis: axis(c, { type: "category", data: knobs.map((knob) => knob.name), axisLabel: { color: c.text, fontFamily: c.mono, width, overflow: "truncate" }, splitLine: { show: false } }),
    series: [
      { type: "bar", barMaxWidth: 18, data: knobs.map((knob) => knob.share), itemStyle: { color: c.accent, borderRadius: [0, 3, 3, 0] } },
      whiskers(knobs.map((knob, i) => [i, knob.low, knob.high]), c.soft, 4),
    ],
  };
}

const NAME_WIDTH = 64; // of "reference"

function distribution(card, section, filters, c) {
  const all = [];
  for (let i = 0; i < section.count; i++) if (section.isMeasured[i]) all.push(i);
  const [low, high] = extent(section.latency, all);
  const isLog = high / low > 3;
  const bins = Math.max(8, Math.min(70, Math.round(Math.sqrt(all.length) * 1.6)));
  const place = (value) => (isLog ? Math.log(value / low) / Math.log(high / low || 2) : (value - low) / (high - low || 1));
  const edge = (share) => (isLog ? low * Math.pow(high / low, share) : low + share * (high - low));
  const counts = (rows) => {
    const found = new Array(bins).fill(0);
    for (const row of rows) found[Math.min(bins - 1, Math.floor(place(section.latency[row]) * bins))]++;
    return found;
  };
  const [total, chosen] = [counts(all), counts(filters.measured)];
  const label = (i) => latency(edge((i + 0.5) / bins), 3);
  // A name stands one line higher where it would lie over the one before. A final round's figure may be below all others.
  const width = card.box.clientWidth;
  let [before, level] = [-Infinity, 0];
  const marks = section.plain.bars.filter((bar) => bar.latency_us <= high && (bar.latency_us >= low || bar.name === "winner")).sort((a, b) => a.latency_us - b.latency_us).map((bar) => {
    const bin = Math.max(0, Math.min(bins - 1, Math.floor(place(bar.latency_us) * bins)));
    level = ((bin - before) / bins) * width < NAME_WIDTH ? level + 1 : 0;
    before = bin;
    return { xAxis: bin, label: { formatter: bar.name, color: c.soft, fontSize: 11, distance: [0, 2 + LABEL_HEIGHT * level] }, lineStyle: { color: bar.name === "winner" ? c.gold : c.soft, type: "dashed" } };
  });
  return {
    ...frame(c, {
      grid: { top: marks.length ? 52 : 14 },
      tooltip: {
        trigger: "axis", axisPointer: { type: "shadow" },
        formatter: (several) => {
          const i = several[0].dataIndex;
          return tip(`${latency(edge(i / bins), 3)} to ${latency(edge((i + 1) / bins), 3)}`, [["configs", String(total[i])], ["that pass the filters", String(chosen[i])]]);
        },
      },
    }),
    xAxis: axis(c, { type: "category", data: total.map((_, i) => label(i)), splitLine: { show: false }, axisLabel: { interval: Math.ceil(bins / 7) } }),
    yAxis: axis(c, { type: "value", minInterval: 1, name: "configs", nameGap: 42, axisLabel: { showMaxLabel: false } }),
    series: [
      { type: "bar", data: total, barCategoryGap: "8%", itemStyle: { color: c.faint, opacity: 0.35 }, barGap: "-100%", markLine: { symbol: "none", silent: true, data: marks } },
      { type: "bar", data: chosen, itemStyle: { color: c.accent } },
    ],
  };
}

/** Return for each of a knob's values its latencies, sorted. */
function byValue(section, rows, knob) {
  const groups = knob.values.map(() => []);
  for (const row of rows) groups[knob.codes[row]].push(section.latency[row]);
  return groups.map((group) => Float64Array.from(group).sort());
}

function againstKnob(section, filters, c, knob) {
  const groups = byValue(section, filters.measured, knob);
  const present = groups.filter((group) => group.length);
  const low = Math.min(...present.map((group) => group[0]));
  const high = Math.max(...present.map((group) => quantile(group, 0.95)));
  const boxes = groups.map((group) => (group.length ? [0.05, 0.25, 0.5, 0.75, 0.95].map((share) => quantile(group, share)) : [NaN, NaN, NaN, NaN, NaN]));
  const best = groups.map((group) => (group.length ? group[0] : null));
  return {
    ...frame(c, {
      grid: { left: 58, right: 6, top: 8, bottom: 24 },
      tooltip: {
        trigger: "axis", axisPointer: { type: "shadow" },
        formatter: (several) => {
          const i = several[0].dataIndex;
          const group = groups[i];
          if (!group.length) return tip(`${knob.name}=${knob.labels[i]}`, [["configs", "none"]]);
          return tip(`${knob.name}=${knob.labels[i]}`, [["fastest", latency(group[0])], ["median", latency(quantile(group, 0.5))], ["middle half", `${latency(quantile(group, 0.25), 3)} to ${latency(quantile(group, 0.75), 3)}`], ["configs", String(group.length)]]);
        },
      },
    }),
    xAxis: axis(c, { type: "category", data: knob.labels, triggerEvent: true, splitLine: { show: false }, axisLabel: { fontFamily: c.mono, fontSize: 11, width: 70, overflow: "truncate" } }),
    yAxis: latencyAxis(c, low, Math.max(high, low * 1.0001), { splitNumber: 3, axisLabel: { fontSize: 11 } }),
    series: [
      { type: "boxplot", data: boxes, boxWidth: [5, 26], itemStyle: { color: c.line, borderColor: c.faint, borderWidth: 1 } },
      { type: "line", data: best, symbol: "circle", symbolSize: 6, lineStyle: { color: c.accent, width: 1.6 }, itemStyle: { color: c.accent }, z: 5, connectNulls: true },
    ],
  };
}

function heatMap(section, filters, c, first, second, by) {
  const [a, b] = [section.knobs[first], section.knobs[second]];
  const groups = new Map();
  for (const row of filters.measured) {
    const key = a.codes[row] * b.values.length + b.codes[row];
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  const cells = [];
  for (const [key, rows] of groups) {
    const values = Float64Array.from(rows, (row) => section.latency[row]).sort();
    cells.push([Math.floor(key / b.values.length), key % b.values.length, by === "median" ? quantile(values, 0.5) : values[0], rows.length]);
  }
  const low = Math.min(...cells.map((cell) => cell[2]));
  const high = Math.max(...cells.map((cell) => cell[2]));
  const relative = cells.map(([x, y, value, rows]) => [x, y, Math.log(value / low), value, rows]);
  const few = a.values.length <= 9 && b.values.length <= 12;
  return {
    ...frame(c, {
      grid: { left: 96, right: 14, top: 6, bottom: 84 },
      tooltip: { formatter: (one) => tip(null, [[a.name, a.labels[one.data[0]]], [b.name, b.labels[one.data[1]]], null, [by === "median" ? "median" : "fastest", latency(one.data[3])], ["vs. best", `${figure(one.data[3] / low, 3)}×`], ["configs", String(one.data[4])]]) },
    }),
    xAxis: axis(c, { type: "category", data: a.labels, name: a.name, nameGap: 26, splitLine: { show: false }, axisLabel: { fontFamily: c.mono, width: 80, overflow: "truncate" } }),
    yAxis: axis(c, { type: "category", data: b.labels, name: b.name, nameGap: 72, splitLine: { show: false }, axisLabel: { fontFamily: c.mono, width: 66, overflow: "truncate" } }),
    visualMap: {
      min: 0, max: Math.max(Math.log(high / low), 0.01), dimension: 2, calculable: false, orient: "horizontal", left: "center", bottom: 2, itemWidth: 10, itemHeight: 150, text: [`${figure(high / low, 3)}× slower`, latency(low, 3)],
      textStyle: { color: c.soft, fontSize: 11 }, inRange: { color: [mixed(c.accent, c.card, 0.65), mixed(c.accent, c.card, 0.35), mixed(c.gold, c.card, 0.5), mixed(c.bad, c.card, 0.75)] },
    },
    series: [{ type: "heatmap", data: relative, itemStyle: { borderColor: c.card, borderWidth: 2, borderRadius: 3 }, label: { show: few, fontSize: 11, color: c.text, formatter: (one) => `${figure(one.data[3] / low, 3)}×` }, emphasis: { itemStyle: { borderColor: c.text } } }],
  };
}

function mixed(one, other, share) {
  const parse = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [a, b] = [parse(one), parse(other)];
  return `rgb(${a.map((value, i) => Math.round(value * share + b[i] * (1 - share))).join(",")})`;
}

const MAX_LINES = 900;
const CHARACTER_WIDTH = 7.5; // of the names' monospaced font
const PARALLEL_EDGES = 130; // on the left and the right of the axes

function parallel(card, section, filters, c) {
  const sorted = Array.from(filters.measured).sort((a, b) => section.latency[a] - section.latency[b]);
  const some = sorted.length <= MAX_LINES ? sorted : [...sorted.slice(0, MAX_LINES / 3), ...Array.from({ length: (MAX_LINES * 2) / 3 }, (_, i) => sorted[Math.floor(MAX_LINES / 3 + (i * (sorted.length - MAX_LINES / 3)) / ((MAX_LINES * 2) / 3))])];
  const shown = section.varied.slice(0, 18);
  // Each axis has room for the longest name: on a narrow screen the chart is scrolled.
  const names = shown.map(({ knob }) => knob.name);
  const room = CHARACTER_WIDTH * (Math.max(...names.map((name) => name.length)) + 2);
  card.box.style.minWidth = `${PARALLEL_EDGES + shown.length * room}px`;
  const apart = (card.box.clientWidth - PARALLEL_EDGES) / shown.length;
  const [low, high] = sorted.length ? [section.latency[sorted[0]], section.latency[sorted[sorted.length - 1]]] : [1, 2];
  const middle = sorted.length ? section.latency[sorted[Math.floor(sorted.length / 2)]] : 1;
  // The fastest are drawn last, on top.
  const data = some.reverse().map((row) => [...shown.map(({ knob }) => knob.codes[row]), section.latency[row], Math.log(section.latency[row] / low), row]);
  const isLog = high / low > 3;
  return {
    shown,
    lines: some.length,
    option: {
      ...frame(c, { tooltip: { trigger: "item", formatter: (one) => trialTip(section, one.data[shown.length + 2]) } }),
      parallel: { left: Math.max(46, (names[0].length * CHARACTER_WIDTH) / 2 + 6), right: 84, top: 34, bottom: 18, parallelAxisDefault: { axisLine: { lineStyle: { color: c.faint } }, axisTick: { show: false }, nameTextStyle: { color: c.text, fontSize: 12, fontFamily: c.mono }, axisLabel: { color: c.text, fontSize: 11, fontFamily: c.mono, width: apart - 12, overflow: "truncate", textBorderColor: c.card, textBorderWidth: 4 }, z: 20, areaSelectStyle: { width: 16, borderColor: c.accent, color: c.accent, opacity: 0.25 } } },
      parallelAxis: [
        ...shown.map(({ knob }, at) => ({ dim: at, id: `knob ${knob.name}`, name: names[at], type: "category", data: knob.labels, boundaryGap: true })),
        { dim: shown.length, id: "latency", name: "latency", type: isLog ? "log" : "value", inverse: true, nameLocation: "start", min: low, max: Math.max(high, low * 1.0001), axisTick: { show: false, customValues: isLog ? roundValues(low, high, 8) : undefined }, axisLabel: { formatter: short, customValues: isLog ? roundValues(low, high, 8) : undefined } },
      ],
      visualMap: { show: false, type: "continuous", dimension: shown.length + 1, min: 0, max: Math.max(Math.log(middle / low), 1e-6), inRange: { color: [c.gold, c.accent, mixed(c.accent, c.faint, 0.35), mixed(c.faint, c.card, 0.8)] } },
      series: [{ type: "parallel", data, smooth: 0.12, lineStyle: { width: some.length > 300 ? 1 : 1.6, opacity: some.length > 300 ? 0.28 : 0.5 }, inactiveOpacity: 0.02, activeOpacity: 0.75, emphasis: { lineStyle: { width: 3, opacity: 1 } }, progressive: 0 }],
    },
  };
}

/** Return everything that an axis of the free chart can show. */
function axesOf(section) {
  const rows = (values, name, isTime) => ({ name, values: (row) => values[row], isTime });
  return [
    { name: "latency", values: (row) => section.latency[row], isLatency: true },
    { name: "order of trials", values: (row) => row + 1 },
    { name: "seconds of tuning", values: (row) => section.seconds[row] },
    rows(section.ended, "time", true),
    { name: "spread", values: (row) => section.spread[row], isLatency: true },
    rows(section.compileS, "compile seconds"),
    rows(section.laneS, "lane seconds"),
    ...section.metrics.map((one) => rows(one.values, one.name)),
    ...section.facts.map((one) => rows(one.values, one.name)),
    ...section.knobs.map((knob) => ({ name: knob.name, values: (row) => knob.codes[row], knob })),
  ];
}

function freeAxis(c, one, low, high, more) {
  if (one.knob) return axis(c, { type: "value", min: -0.6, max: one.knob.values.length - 0.4, interval: 1, name: one.name, axisLabel: { fontFamily: c.mono, formatter: (value) => one.knob.labels[value] ?? "" }, splitLine: { show: false }, ...more });
  if (one.isLatency) return latencyAxis(c, low, high, { name: one.name, ...more });
  if (one.isTime) return axis(c, { type: "time", name: one.name, splitLine: { show: false }, ...more });
  return axis(c, { type: low > 0 && high / low > 50 ? "log" : "value", scale: true, name: one.name, axisLabel: { formatter: (value) => figure(value, 3) }, ...more });
}

function explore(section, filters, c, x, y, by) {
  const axes = axesOf(section);
  const [across, up] = [axes[x], axes[y]];
  const spot = (one, row) => (one.knob ? one.values(row) + (((row * 2654435761) % 1000) / 1000 - 0.5) * 0.5 : one.isTime ? one.values(row) * 1e3 : one.values(row));
  const rows = Array.from(filters.measured).filter((row) => Number.isFinite(across.values(row)) && Number.isFinite(up.values(row)));
  const knob = by >= 0 ? section.knobs[by] : null;
  const groups = knob ? knob.labels.map((label, code) => [label, rows.filter((row) => knob.codes[row] === code)]).filter(([, some]) => some.length) : [["", rows]];
  const bounds = (one) => {
    const values = Float64Array.from(rows, (row) => one.values(row));
    return extent(values, values.keys());
  };
  const small = rows.length > 5000 ? 2.5 : rows.length > 800 ? 4 : 7;
  return {
    ...frame(c, { tooltip: { trigger: "item", formatter: (one) => trialTip(section, one.data[2]) }, grid: { left: 78, top: knob ? 34 : 14, bottom: 46 } }),
    legend: { show: Boolean(knob), type: "scroll", top: 0, textStyle: { color: c.soft }, icon: "circle", itemHeight: 9, data: groups.map(([label]) => label) },
    xAxis: freeAxis(c, across, ...bounds(across)),
    yAxis: freeAxis(c, up, ...bounds(up), { nameGap: 58 }),
    series: [
      ...groups.map(([label, some], i) => ({ type: "scatter", name: label, large: true, largeThreshold: 4000, symbolSize: small, data: some.map((row) => [spot(across, row), spot(up, row), row]), itemStyle: { color: knob ? KINDS[i % KINDS.length] : c.accent, opacity: rows.length > 5000 ? 0.35 : 0.6 } })),
      { type: "scatter", z: 9, symbolSize: 13, symbol: "diamond", data: [section.winnerRow].filter((row) => row >= 0 && rows.includes(row)).map((row) => [spot(across, row), spot(up, row), row]), itemStyle: { color: c.gold, borderColor: c.card, borderWidth: 1.5 }, tooltip: {} },
    ],
  };
}

const BANDWIDTH = "gbps";

/** Return the TFLOP/s that limit a metric, if they are known: `tflops` is of float32, `tflops_float16` of float16. */
function peakOf(roof, metric) {
  return roof && roof.tflops[metric === "tflops" ? "float32" : metric.slice(7)];
}

/** Return the metrics of a section's roofline, or null if its kernel file declares too little or no limit is known. */
function roofOf(section) {
  const bytes = section.metrics.find((one) => one.name === BANDWIDTH);
  const flops = section.metrics.filter((one) => /^tflops(_[a-z0-9]+)?$/.test(one.name));
  if (!bytes || !flops.length) return null;
  // Of several precisions the one with most operations.
  const total = (one) => one.values.reduce((sum, value) => sum + (value > 0 ? value : 0), 0);
  flops.sort((a, b) => total(b) - total(a));
  const { roof } = section.plain;
  // Without a limit it would be a cloud below nothing.
  return roof && (roof.gbps || peakOf(roof, flops[0].name)) ? { bytes, flops: flops[0] } : null;
}

function roofline(section, filters, c, roofs, sections) {
  const { bytes, flops } = roofs;
  const point = (gbps, tflops) => [(tflops * 1e3) / gbps, tflops];
  const rows = Array.from(filters.measured).filter((row) => bytes.values[row] > 0 && flops.values[row] > 0);
  const points = rows.map((row) => [...point(bytes.values[row], flops.values[row]), row]);
  const { plain } = section;
  const others = sections.filter((other) => other !== section && other.plain.kernel === plain.kernel && other.plain.device === plain.device && other.plain.winner && other.plain.winner.metrics[BANDWIDTH] > 0 && other.plain.winner.metrics[flops.name] > 0)
    .map((other) => [...point(other.plain.winner.metrics[BANDWIDTH], other.plain.winner.metrics[flops.name]), flat(other.plain.problem)]);
  const bandwidth = (plain.roof && plain.roof.gbps) || NaN;
  const peak = peakOf(plain.roof, flops.name) || NaN;
  const ridge = (peak * 1e3) / bandwidth;
  const xs = [...points, ...others].map((one) => one[0]).concat(Number.isFinite(ridge) ? [ridge] : []);
  const ys = [...points, ...others].map((one) => one[1]).concat(Number.isFinite(peak) ? [peak] : []);
  const bounds = (values) => [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  const [[left, right], [low, high]] = [bounds(xs), bounds(ys)];
  const [from, to] = [left / 4, right * 4];
  const roof = [];
  if (Number.isFinite(bandwidth)) {
    const start = Math.max(from, (low / 2) * 1e3 / bandwidth);
    roof.push([start, (start * bandwidth) / 1e3]);
    if (Number.isFinite(peak)) roof.push([ridge, peak], [to, peak]);
    else roof.push([to, (to * bandwidth) / 1e3]);
  } else if (Number.isFinite(peak)) roof.push([from, peak], [to, peak]);
  const ticks = (a, b) => { const values = roundValues(a, b, 6); return { axisTick: { show: false, customValues: values }, axisLabel: { customValues: values, formatter: (value) => figure(value, 3) } }; };
  return {
    ...frame(c, { grid: { left: 66, bottom: 46 }, tooltip: { trigger: "item", formatter: (one) => (one.seriesIndex === 0 ? tip("limits", [["memory", Number.isFinite(bandwidth) ? `${figure(bandwidth)} GB/s` : "–"], ["arithmetic", Number.isFinite(peak) ? `${figure(peak)} TFLOP/s` : "–"], ["ridge", Number.isFinite(ridge) ? `${figure(ridge, 3)} FLOP/byte` : "–"]]) : typeof one.data[2] === "string" ? tip(one.data[2], [["TFLOP/s", figure(one.data[1])], ["FLOP/byte", figure(one.data[0], 3)]]) : trialTip(section, one.data[2])) } }),
    xAxis: axis(c, { type: "log", min: from, max: to, name: "FLOP / byte", ...ticks(from, to) }),
    yAxis: axis(c, { type: "log", min: low / 2, max: high * 1.6, name: flops.name === "tflops" ? "TFLOP/s" : `TFLOP/s, ${flops.name.slice(7)}`, nameGap: 46, ...ticks(low / 2, high * 1.6) }),
    series: [
      { type: "line", data: roof, symbol: "none", lineStyle: { color: c.second, width: 2.2 }, areaStyle: { color: c.second, opacity: 0.06 }, z: 2 },
      { type: "scatter", large: true, largeThreshold: 4000, data: points, symbolSize: 6, itemStyle: { color: c.accent, opacity: rows.length > 1000 ? 0.25 : 0.5 } },
      { type: "scatter", data: others, symbolSize: 10, itemStyle: { color: "transparent", borderColor: c.soft, borderWidth: 1.6 } },
      { type: "scatter", data: points.filter((one) => one[2] === section.winnerRow), symbolSize: 13, symbol: "diamond", itemStyle: { color: c.gold, borderColor: c.card, borderWidth: 1.5 }, z: 9 },
    ],
  };
}

function history(section, c) {
  const saves = statesOf(section.plain);
  const values = saves.map((save) => save.trials.best.figure);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return {
    ...frame(c, {
      grid: { left: 74, bottom: 34 },
      tooltip: {
        trigger: "axis",
        formatter: ([one]) => {
          const save = saves[one.dataIndex];
          const said = save.changes.length ? save.changes.slice(0, 6).join("\n") + (save.changes.length > 6 ? `\nand ${save.changes.length - 6} more` : "") : "the first state";
          return tip(day(save.trials.first), [["fastest", latency(save.trials.best.figure)], ["trials", `${save.trials.measured} of ${save.trials.trials} measured`], ["config", flat(save.trials.best.config)], null], make("span", { style: "white-space: pre-line" }, said));
        },
      },
    }),
    xAxis: axis(c, { type: "category", data: saves.map((save) => day(save.trials.first)), splitLine: { show: false }, axisLabel: { interval: "auto" } }),
    yAxis: latencyAxis(c, low, high),
    series: [{
      type: "line", step: "end", data: saves.map((save) => ({ value: save.trials.best.figure, symbolSize: save.is_shown ? 13 : 8, itemStyle: { color: save.is_shown ? c.gold : c.accent } })), symbol: "circle", lineStyle: { color: c.accent, width: 2 }, itemStyle: { borderColor: c.card, borderWidth: 1.5 },
    }],
  };
}

/** Return the spans of a job's trials: [row of the chart, begin, end, trial, kind], in seconds since the first. */
function spansOf(section, job) {
  const rows = new Map();
  const spans = [];
  let start = Infinity;
  for (const kind of ["compile", "lane"]) {
    const places = section.columns.get(`${kind}_place`);
    const began = section.columns.get(`${kind}_began`);
    const seconds = kind === "compile" ? section.compileS : section.laneS;
    for (let i = 0; i < section.count; i++) {
      const place = places.values[places.codes[i]];
      if (!place || section.job.values[section.job.codes[i]] !== job || !(seconds[i] > 0)) continue;
      if (!rows.has(place)) rows.set(place, { place, kind, busy: 0 });
      rows.get(place).busy += seconds[i];
      start = Math.min(start, began[i]);
      spans.push([place, began[i], began[i] + seconds[i], i, kind]);
    }
  }
  const order = [...rows.values()].sort((a, b) => (a.kind === b.kind ? a.place.localeCompare(b.place, undefined, { numeric: true }) : a.kind === "lane" ? -1 : 1));
  const index = new Map(order.map((row, i) => [row.place, i]));
  return { order, spans: spans.map(([place, from, to, row, kind]) => [index.get(place), from - start, to - start, row, kind]) };
}

function endOf(spans) {
  return spans.reduce((end, span) => Math.max(end, span[2]), 0.001);
}

const MAX_SPANS = 6000;

/** Join spans that are closer than what a pixel shows, so that a long job stays quick to draw. */
function joined(spans, end) {
  if (spans.length <= MAX_SPANS) return spans;
  const gap = end / 1500;
  const last = new Map();
  const found = [];
  for (const span of [...spans].sort((a, b) => a[1] - b[1])) {
    const before = last.get(span[0]);
    if (before && span[1] - before[2] < gap && before[2] - before[1] < gap * 8) before[2] = Math.max(before[2], span[2]);
    else {
      const fresh = [...span];
      last.set(span[0], fresh);
      found.push(fresh);
    }
  }
  return found;
}

function timeline(section, c, found) {
  const end = endOf(found.spans);
  const colour = (span) => (!section.isMeasured[span[3]] && span[4] === "lane" ? c.bad : span[4] === "lane" ? c.accent : c.second);
  return {
    ...frame(c, {
      grid: { left: 92, right: 16, top: 6, bottom: 56 },
      tooltip: { formatter: (one) => { const span = one.data; const shown = trialTip(section, span[3]); shown.prepend(make("b", {}, `${found.order[span[0]].place}: ${duration(span[2] - span[1])} · `)); return shown; } },
    }),
    xAxis: axis(c, { type: "value", min: 0, max: end, name: "seconds", nameGap: 24, splitLine: { show: false }, axisLabel: { formatter: (value) => figure(value, 4), showMaxLabel: false } }),
    yAxis: axis(c, { type: "category", inverse: true, data: found.order.map((row) => row.place), axisLabel: { color: c.text, fontFamily: c.mono, width: 84, overflow: "truncate" }, splitLine: { show: false } }),
    dataZoom: [{ type: "slider", height: 14, bottom: 4, borderColor: c.line, fillerColor: mixed(c.accent, c.card, 0.2), textStyle: { color: c.soft, fontSize: 10 }, labelFormatter: (value) => `${figure(value, 3)} s`, brushSelect: false, filterMode: "weakFilter" }, { type: "inside", zoomOnMouseWheel: "ctrl", filterMode: "weakFilter" }],
    series: [{
      type: "custom", data: joined(found.spans, end), encode: { x: [1, 2], y: 0 }, clip: true,
      renderItem: (params, api) => {
        const span = found.spans.length && params.dataIndexInside >= 0 ? [api.value(0), api.value(1), api.value(2)] : null;
        const from = api.coord([span[1], span[0]]);
        const to = api.coord([span[2], span[0]]);
        const height = Math.min(22, api.size([0, 1])[1] * 0.68);
        const row = api.value(3);
        const kind = found.order[span[0]].kind;
        return { type: "rect", shape: { x: from[0], y: from[1] - height / 2, width: Math.max(1, to[0] - from[0] - 0.5), height, r: to[0] - from[0] > 6 ? 2 : 0 }, style: { fill: colour([0, 0, 0, row, kind]), opacity: 0.9 }, emphasis: { style: { opacity: 1, stroke: c.text, lineWidth: 1 } } };
      },
    }],
  };
}
