// Importance of knobs by boosted regression trees, with its uncertainty.
//
// Each model learns log latency from a random sample of the trials and is asked about those that it has not seen, once
// as they are and once with a knob's values shuffled among them: the error that this adds is what the knob decides. The
// spread over the models is the uncertainty. Knobs are categories: a split orders their values by their mean, which finds
// the best of all two-sided splits (Breiman et al., 1984, theorem 4.5), so that tile sizes and flags need no encoding.
"use strict";

const MODELS = 12;
const ROUNDS = 50;
const RATE = 0.18;
const DEPTH = 3;
const MIN_LEAF = 2;
const MIN_TRIALS = 16; // below, a model has nothing to learn from and nothing left to be asked about
const MIN_FIT = 0.5; // a model that explains less of what it has not seen says little of the knobs
const MAX_LEARNED = 1200; // the shares of ten knobs do not move beyond

/** A small generator with a seed (mulberry32), so that a page shows the same each time. */
function randomOf(seed) {
  let now = seed >>> 0;
  return () => {
    now = (now + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(now ^ (now >>> 15), now | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Return `{knobs: [{name, share, low, high}], fit}`, the greatest share first, or `{knobs: [], absence}`. */
function importance(section, filters) {
  if (filters.model && filters.modelOf === filters.mask) return filters.model;
  const found = learned(section, filters.measured);
  filters.model = found;
  filters.modelOf = filters.mask;
  return found;
}

function learned(section, measured) {
  const knobs = section.varied.map(({ knob }) => knob);
  if (measured.length < MIN_TRIALS) return { knobs: [], absence: `Which knobs matter is unclear: ${measured.length} measured configs are too few, ${MIN_TRIALS} say something.` };
  const random = randomOf(1);
  let rows = Array.from(measured);
  if (rows.length > MAX_LEARNED) rows = Array.from({ length: MAX_LEARNED }, () => rows[Math.floor(random() * rows.length)]);
  const codes = knobs.map((knob) => Uint32Array.from(rows, (row) => knob.codes[row]));
  const sizes = knobs.map((knob) => knob.values.length);
  const target = Float64Array.from(rows, (row) => Math.log(section.latency[row]));
  const shares = knobs.map(() => []);
  const fits = [];
  for (let model = 0; model < MODELS; model++) {
    const inside = new Set();
    const sample = Uint32Array.from(rows, () => {
      const place = Math.floor(random() * rows.length);
      inside.add(rows[place]);
      return place;
    });
    const unseen = Uint32Array.from(rows.keys()).filter((place) => !inside.has(rows[place]));
    if (unseen.length < 4) continue;
    const trees = boosted(codes, sizes, target, sample);
    const variance = varianceOf(target, unseen);
    if (!(variance > 1e-12)) return { knobs: [], absence: "All measured configs are equally fast." };
    const error = errorOf(trees, codes, target, unseen);
    fits.push(1 - error / variance);
    knobs.forEach((_, k) => {
      const shuffled = codes.slice();
      shuffled[k] = codes[k].slice();
      const order = Uint32Array.from(unseen);
      for (let i = order.length - 1; i > 0; i--) {
        const j = Math.floor(random() * (i + 1));
        [order[i], order[j]] = [order[j], order[i]];
      }
      unseen.forEach((place, i) => { shuffled[k][place] = codes[k][order[i]]; });
      // Shuffling compares two independent copies, which doubles the variance that a knob carries.
      shares[k].push((errorOf(trees, shuffled, target, unseen) - error) / variance / 2);
    });
  }
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
  const fit = Math.max(0, mean(fits));
  if (fit < MIN_FIT) return { knobs: [], absence: `Which knobs matter is unclear: a model of them explains ${Math.round(100 * fit)} % of the variance of configs that it has not seen.` };
  const some = knobs.map((knob, k) => {
    const sorted = Float64Array.from(shares[k]).sort();
    const part = (value) => Math.min(1, Math.max(0, value));
    return { name: knob.name, share: part(mean(shares[k])), low: part(quantile(sorted, 0.025)), high: part(quantile(sorted, 0.975)) };
  });
  return { knobs: some.sort((a, b) => b.share - a.share), fit };
}

function varianceOf(target, places) {
  let sum = 0;
  let squares = 0;
  for (const place of places) {
    sum += target[place];
    squares += target[place] ** 2;
  }
  return squares / places.length - (sum / places.length) ** 2;
}

function boosted(codes, sizes, target, sample) {
  const rest = new Float64Array(target.length);
  let base = 0;
  for (const place of sample) base += target[place] / sample.length;
  for (let i = 0; i < target.length; i++) rest[i] = target[i] - base;
  const trees = [{ value: base }];
  for (let round = 0; round < ROUNDS; round++) {
    const tree = grown(codes, sizes, rest, sample, DEPTH);
    if (tree.knob === undefined) break;
    trees.push(tree);
    for (let i = 0; i < rest.length; i++) rest[i] -= answer(tree, codes, i);
  }
  return trees;
}

function grown(codes, sizes, rest, places, depth) {
  let total = 0;
  for (const place of places) total += rest[place];
  const leaf = { value: (RATE * total) / (places.length + 1) };
  if (depth === 0 || places.length < 2 * MIN_LEAF) return leaf;
  let best = null;
  let bestGain = (total * total) / places.length + 1e-9;
  for (let k = 0; k < codes.length; k++) {
    const counts = new Uint32Array(sizes[k]);
    const sums = new Float64Array(sizes[k]);
    const knob = codes[k];
    for (const place of places) {
      counts[knob[place]]++;
      sums[knob[place]] += rest[place];
    }
    const held = [];
    for (let code = 0; code < sizes[k]; code++) if (counts[code]) held.push(code);
    held.sort((a, b) => sums[a] / counts[a] - sums[b] / counts[b]);
    let leftCount = 0;
    let leftSum = 0;
    for (let i = 0; i < held.length - 1; i++) {
      leftCount += counts[held[i]];
      leftSum += sums[held[i]];
      const rightCount = places.length - leftCount;
      if (Math.min(leftCount, rightCount) < MIN_LEAF) continue;
      const gain = (leftSum * leftSum) / leftCount + (total - leftSum) ** 2 / rightCount;
      if (gain > bestGain) {
        bestGain = gain;
        best = { knob: k, left: held.slice(0, i + 1) };
      }
    }
  }
  if (!best) return leaf;
  const isLeft = new Uint8Array(sizes[best.knob]);
  for (const code of best.left) isLeft[code] = 1;
  const column = codes[best.knob];
  return {
    knob: best.knob, isLeft,
    left: grown(codes, sizes, rest, places.filter((place) => isLeft[column[place]]), depth - 1),
    right: grown(codes, sizes, rest, places.filter((place) => !isLeft[column[place]]), depth - 1),
  };
}

function answer(tree, codes, place) {
  let node = tree;
  while (node.knob !== undefined) node = node.isLeft[codes[node.knob][place]] ? node.left : node.right;
  return node.value;
}

function errorOf(trees, codes, target, places) {
  let error = 0;
  for (const place of places) {
    let sum = 0;
    for (const tree of trees) sum += answer(tree, codes, place);
    error += (target[place] - sum) ** 2;
  }
  return error / places.length;
}
