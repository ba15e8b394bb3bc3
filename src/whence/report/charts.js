/* The pictures of a study. Every function takes data and returns an element that belongs to no
   page yet, so that the report and a live page can both use them. `d3` and `Plot` are globals.

   Whatever belongs to one system carries data-system="its id"; highlighting is built on that
   attribute alone (see `linkHighlights` in interaction.js). */

const COLOURS = 6;
const DASHES = ["none", "7 3", "2 3"]; // the second and third round through the colours
const LABEL_LENGTH = 26;

/** An element with attributes (null and false: left out; functions: listeners) and children. */
export function element(tag, attributes = {}, ...children) {
  const space = SVG_TAGS.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const node = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // Children are nodes or text, never markup: a question may hold any characters.
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG_TAGS = new Set(["svg", "rect", "line", "circle", "text", "g"]);

/** The systems of a study with what every chart needs: an id, a colour, a dash, its stages. */
export function seriesOf(study) {
  let trained = 0;
  return study.systems.map((system, index) => {
    const baseline = system.kind === "baseline";
    const turn = baseline ? 0 : trained++;
    return {
      ...system,
      id: String(index),
      baseline,
      colour: baseline ? "var(--baseline)" : `var(--series-${turn % COLOURS})`,
      dash: DASHES[Math.floor(turn / COLOURS) % DASHES.length],
      stages: stagesOf(system),
    };
  });
}

/** When each stage of a training began and ended, from the points that were logged in it. */
function stagesOf(system) {
  const stages = [];
  for (const point of d3.sort([...system.loss, ...system.curve], (point) => point.step)) {
    const last = stages.at(-1);
    if (last?.name === point.stage) {
      last.seconds[1] = Math.max(last.seconds[1], point.seconds);
      last.step[1] = Math.max(last.step[1], point.step);
    } else {
      // A stage begins where the one before ended, not at its own first logged point.
      const [seconds, step] = last ? [last.seconds[1], last.step[1]] : [0, 0];
      stages.push({
        name: point.stage,
        seconds: [seconds, point.seconds],
        step: [step, point.step],
      });
    }
  }
  return stages;
}

export const percent = (value) => (value === null ? "–" : `${value.toFixed(1)}\u00a0%`);
export const whole = d3.format(",");
export const short = (value) => (value < 1000 ? d3.format(".3~r") : d3.format(".3s"))(value)
  .replace(/[a-zA-Z]$/, "\u00a0$&");

export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const range = (interval) => interval.map((end) => end.toFixed(1)).join("\u2060–\u2060");

/** Wilson's interval of a share at 95 %, in percent: honest for few questions too. */
export function wilson(correct, total) {
  if (!total) return null;
  const z = 1.959964;
  const share = correct / total;
  const middle = (share + (z * z) / (2 * total)) / (1 + (z * z) / total);
  const half =
    (z / (1 + (z * z) / total)) *
    Math.sqrt((share * (1 - share)) / total + (z * z) / (4 * total * total));
  return [100 * Math.max(0, middle - half), 100 * Math.min(1, middle + half)];
}

/** A short stroke in the colour and dash of a system: the key to its curves. */
export function swatch(system) {
  const mark = system.baseline
    ? element("circle", { cx: 11, cy: 5, r: 3.5, fill: "none", "stroke-width": 2 })
    : element("line", {
        x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 3.2, "stroke-dasharray": system.dash,
      });
  mark.setAttribute("stroke", system.colour);
  return element("svg", { class: "swatch", width: 22, height: 10, "aria-hidden": "true" }, mark);
}

/** Accuracy as a bar with its interval as whiskers, on a scale that the whole column shares. */
export function intervalBar({ accuracy, interval, colour, baseline }, top, reference = null) {
  const at = (value) => `${(100 * Math.min(value, top)) / top}%`;
  const svg = element("svg", { class: "interval", role: "img", "aria-label": "" });
  if (accuracy === null) return svg;
  const ends = interval ? `, interval ${interval.map((end) => end.toFixed(1)).join(" to ")}` : "";
  svg.setAttribute("aria-label", `${percent(accuracy)}${ends}`);
  svg.append(
    element("rect", {
      class: "bar", x: 0, y: 5, height: 12, width: at(accuracy), rx: 1.5, fill: colour,
      "fill-opacity": baseline ? 0.35 : 0.55,
    }),
  );
  if (reference !== null)
    svg.append(
      element("line", { class: "reference", x1: at(reference), x2: at(reference), y1: 0, y2: 22 }),
    );
  if (interval) {
    const [low, high] = interval.map(at);
    svg.append(
      element("line", { class: "whisker", x1: low, x2: high, y1: 11, y2: 11 }),
      element("line", { class: "whisker", x1: low, x2: low, y1: 7, y2: 15 }),
      element("line", { class: "whisker", x1: high, x2: high, y1: 7, y2: 15 }),
    );
  }
  return svg;
}

/** The scale above a column of interval bars. */
export function intervalAxis(top) {
  const svg = element("svg", { class: "interval axis", "aria-hidden": "true" });
  for (const tick of [0, top / 2, top]) {
    const anchor = tick === 0 ? "start" : tick === top ? "end" : "middle";
    svg.append(
      element("text", { x: `${(100 * tick) / top}%`, y: 16, "text-anchor": anchor },
        tick === top ? `${tick} %` : String(tick)),
    );
  }
  return svg;
}

/** Accuracy against training time (or steps), the stages' ends, and the best baseline. */
export function accuracyCurves(series, { width, x = "seconds", reference = null, highlight }) {
  const lines = series
    .map((system) => ({ system, points: finite(system.curve, "accuracy") }))
    .filter(({ points }) => points.length > 0);
  if (lines.length === 0) return missing("No accuracy was measured during training.");

  const last = d3.max(lines, ({ system }) => d3.max(system.stages, (stage) => stage[x][1])) || 1;
  const scale = horizontal(last, x);
  const highest = d3.max(lines.flatMap(({ points }) => points), (point) => point.accuracy);
  const top = niceTop(Math.max(highest, reference?.accuracy ?? 0));
  const labelled = width >= 620 && lines.length <= 16;
  const height = Math.max(300, Math.min(400, width * 0.46));
  const margins = {
    marginTop: 26,
    marginBottom: 12,
    marginLeft: 40,
    marginRight: labelled ? labelSpace(lines) : 16,
  };

  const marks = [
    Plot.gridY({ stroke: "var(--grid)", strokeOpacity: 1, ticks: 5 }),
    Plot.ruleY([0], { stroke: "var(--axis)" }),
  ];
  if (reference)
    marks.push(
      Plot.ruleY([reference.accuracy], { stroke: "var(--baseline)", strokeDasharray: "3 3" }),
      Plot.text([reference], {
        x: 0, y: "accuracy", dx: 4, dy: -7, textAnchor: "start", fill: "var(--quiet)",
        text: (system) => `best baseline: ${clip(system.label)}`,
      }),
    );
  for (const { system, points } of lines) {
    marks.push(
      ...stageMarks(system, x, scale.unit),
      ofSystem(system, Plot.line, points, {
        x: (point) => point[x] / scale.unit, y: "accuracy", strokeWidth: 2.2,
        stroke: system.colour, strokeDasharray: system.dash,
      }),
      // Straight lines between the measurements, which are dots: nothing is drawn that was not seen.
      ofSystem(system, Plot.dot, points.length > 40 ? points.slice(-1) : points, {
        x: (point) => point[x] / scale.unit, y: "accuracy", fill: system.colour,
        r: (point) => (point === points.at(-1) ? 4 : 2.1),
      }),
    );
  }
  if (labelled)
    marks.push(...endLabels(lines, { x, top, height, last, unit: scale.unit, ...margins }));
  const all = lines.flatMap(({ system, points }) =>
    points.map((point) => ({ ...point, system, across: point[x] / scale.unit })),
  );
  marks.push(
    tooltip(all, "accuracy", (point) => [
      point.system.label,
      `${percent(point.accuracy)} after ${duration(point.seconds)}`,
      `step ${whole(point.step)}, ${point.stage}`,
    ]),
  );
  const across = { domain: [0, last / scale.unit], label: scale.label, ...ACROSS };
  const plot = Plot.plot({
    width, height, ...margins,
    x: { ...across, axis: null },
    y: { domain: [0, top], label: "↑ accuracy (%)", ticks: 5, ...QUIET_AXIS },
    r: { type: "identity" },
    ariaLabel: "Accuracy over training",
    marks,
  });
  return element("div", {}, linked(plot, highlight),
    stageStrips(lines.map(({ system }) => system), { width, x, across, unit: scale.unit,
      ...margins }));
}

/** One strip a system under the accuracies: how long it spent in which stage. */
function stageStrips(systems, { width, x, across, unit, marginLeft, marginRight }) {
  const roomy = systems.length <= 6;
  const tall = roomy ? 17 : 9;
  const pixels = (width - marginLeft - marginRight) / (across.domain[1] * unit);
  const marks = systems.flatMap((system) => {
    const bars = system.stages.map((stage, index) => ({
      name: stage.name, row: system.id, from: stage[x][0] / unit, to: stage[x][1] / unit,
      last: index === system.stages.length - 1,
      title: `${system.label}: ${stage.name}, ${duration(stage.seconds[1] - stage.seconds[0])}`,
      fits: roomy && (stage[x][1] - stage[x][0]) * pixels > 7 * stage.name.length + 8,
    }));
    return [
      ofSystem(system, Plot.barX, bars, {
        x1: "from", x2: "to", y: "row", fill: system.colour, insetRight: 1, title: "title",
        fillOpacity: (bar) => (bar.last ? 0.6 : 0.25),
      }),
      ofSystem(system, Plot.text, bars.filter((bar) => bar.fits), {
        x: "from", y: "row", text: "name", dx: 5, textAnchor: "start", fill: "var(--ink)",
        fontSize: 10.5, pointerEvents: "none",
      }),
    ];
  });
  return Plot.plot({
    width, height: systems.length * tall + 42, marginTop: 2, marginBottom: 40, marginLeft,
    marginRight,
    x: across,
    y: { type: "band", domain: systems.map(({ id }) => id), axis: null, padding: 0.16 },
    opacity: { type: "identity" },
    ariaLabel: "The stages of each training",
    marks,
  });
}

/** The loss of every system in one stage, from the stage's beginning, on a logarithmic scale. */
export function lossCurves(series, stage, { width, x = "seconds", highlight }) {
  const lines = series
    .map((system) => {
      const begin = system.stages.find(({ name }) => name === stage)?.[x][0] ?? 0;
      const points = finite(system.loss, "loss")
        .filter((point) => point.stage === stage && point.loss > 0)
        .map((point) => ({ ...point, system, since: point[x] - begin }));
      return { system, points: thin(smooth(points)) };
    })
    .filter(({ points }) => points.length > 0);
  if (lines.length === 0) return missing("No loss was logged.");

  const all = lines.flatMap(({ points }) => points);
  const scale = horizontal(d3.max(all, (point) => point.since), x);
  for (const point of all) point.across = point.since / scale.unit;
  const ticks = logarithmicTicks(d3.extent(all, (point) => point.loss));
  const marks = [Plot.gridY(ticks, { stroke: "var(--grid)", strokeOpacity: 1 })];
  for (const { system, points } of lines)
    marks.push(
      ofSystem(system, Plot.line, points, {
        x: "across", y: "loss", stroke: system.colour, strokeWidth: 1, strokeOpacity: 0.28,
      }),
      ofSystem(system, Plot.line, points, {
        x: "across", y: "smooth", stroke: system.colour, strokeWidth: 2,
        strokeDasharray: system.dash,
      }),
    );
  marks.push(
    tooltip(all, "smooth", (point) => [
      point.system.label,
      `loss ${point.loss.toPrecision(3)}, smoothed ${point.smooth.toPrecision(3)}`,
      `${duration(point.seconds)}, step ${whole(point.step)}`,
    ]),
  );
  return linked(
    Plot.plot({
      width, height: 260, marginTop: 26, marginBottom: 40, marginLeft: 46, marginRight: 14,
      x: { zero: true, label: `${scale.label}, in this stage`, ticks: 5, ...ACROSS },
      y: {
        type: "log", label: "↑ loss (log)", ticks, tickFormat: d3.format("~r"), ...QUIET_AXIS,
      },
      ariaLabel: `Loss during ${stage}`,
      marks,
    }),
    highlight,
  );
}

/** How often answers of each probability were right, and how many there were, right and wrong. */
export function probabilityPicture(system, { width }) {
  const marked = system.answers.filter(
    (answer) => answer.probability !== null && answer.correct !== null,
  );
  if (marked.length === 0) return missing("No answer has both a probability and a mark.");
  const bins = d3.range(10).map((index) => ({ from: index / 10, to: (index + 1) / 10,
    right: 0, wrong: 0, sum: 0 }));
  for (const { probability, correct } of marked) {
    const bin = bins[Math.min(9, Math.max(0, Math.floor(probability * 10)))];
    bin[correct ? "right" : "wrong"] += 1;
    bin.sum += probability;
  }
  const filled = bins
    .map((bin) => ({ ...bin, count: bin.right + bin.wrong }))
    .filter((bin) => bin.count > 0)
    .map((bin) => ({ ...bin, mean: bin.sum / bin.count, interval: wilson(bin.right, bin.count),
      share: (100 * bin.right) / bin.count }));
  const margins = { marginLeft: 36, marginRight: 10 };
  const across = { domain: [0, 1], ...ACROSS };
  const describe = (bin) =>
    `probability ${bin.from.toFixed(1)}–${bin.to.toFixed(1)}\n` +
    `${bin.right} right, ${bin.wrong} wrong: ${percent(bin.share)}`;
  const most = { right: d3.max(filled, (bin) => bin.right) || 1,
    wrong: d3.max(filled, (bin) => bin.wrong) || 1 };
  return element("div", { class: "probability" },
    Plot.plot({
      width, height: 158, marginTop: 28, marginBottom: 6, ...margins,
      x: { ...across, axis: null },
      y: { domain: [0, 100], ticks: [0, 50, 100], label: "↑ right (%)", ...QUIET_AXIS },
      ariaLabel: `Share of right answers by probability, ${system.label}`,
      marks: [
        Plot.gridY([0, 50, 100], { stroke: "var(--grid)", strokeOpacity: 1 }),
        Plot.line([[0, 0], [1, 100]], { stroke: "var(--axis)", strokeDasharray: "3 3" }),
        Plot.ruleX(filled, { x: "mean", y1: (bin) => bin.interval[0],
          y2: (bin) => bin.interval[1], stroke: "var(--ink)", strokeOpacity: 0.4 }),
        Plot.dot(filled, { x: "mean", y: "share", r: 4, fill: system.colour }),
        Plot.tip(filled, Plot.pointer({ x: "mean", y: "share", title: describe, ...TIP })),
      ],
    }),
    element("p", { class: "key" }, "answers, ", element("span", { class: "right" }, "✓ right"),
      " above and ", element("span", { class: "wrong" }, "✗ wrong"), " below"),
    Plot.plot({
      width, height: 132, marginTop: 6, marginBottom: 36, ...margins,
      x: { ...across, ticks: 5, label: "probability of the answer" },
      y: { domain: [-most.wrong, most.right], label: null, ...QUIET_AXIS,
        ticks: roundTicks(most),
        tickFormat: (count) => whole(Math.abs(count)) },
      ariaLabel: `Number of right and wrong answers by probability, ${system.label}`,
      marks: [
        Plot.rect(filled, { x1: "from", x2: "to", y1: 0, y2: "right", insetLeft: 1,
          fill: "var(--right)" }),
        Plot.rect(filled, { x1: "from", x2: "to", y1: 0, y2: (bin) => -bin.wrong, insetLeft: 1,
          fill: "var(--wrong)" }),
        Plot.ruleY([0], { stroke: "var(--axis)" }),
        Plot.tip(filled, Plot.pointerX({ x: (bin) => (bin.from + bin.to) / 2, y: 0,
          title: describe, ...TIP })),
      ],
    }),
  );
}

/** How often a right answer has a higher probability than a wrong one (0.5: no better than luck). */
export function separation(answers) {
  const marked = answers.filter((one) => one.probability !== null && one.correct !== null);
  const right = marked.filter((answer) => answer.correct).length;
  const wrong = marked.length - right;
  if (!right || !wrong) return null;
  const ranks = d3.rank(marked, (answer) => answer.probability);
  // d3 gives ties the lowest rank; the middle of the tie is what the statistic asks for.
  const ties = d3.rollup(ranks, (tied) => tied.length, (rank) => rank);
  const sum = d3.sum(marked, (answer, index) =>
    answer.correct ? ranks[index] + (ties.get(ranks[index]) - 1) / 2 + 1 : 0,
  );
  return (sum - (right * (right + 1)) / 2) / (right * wrong);
}

const QUIET_AXIS = { tickSize: 0, labelArrow: "none" };
const ACROSS = { ...QUIET_AXIS, labelAnchor: "center" };
const TIP = { fill: "var(--card)", stroke: "var(--axis)", fontSize: 12, lineHeight: 1.35 };

const finite = (points, key) => points.filter((point) => point[key] !== null);
const clip = (text) =>
  text.length > LABEL_LENGTH ? `${text.slice(0, LABEL_LENGTH - 1)}…` : text;
const labelSpace = (lines) =>
  20 + 6.6 * d3.max(lines, ({ system }) => clip(system.label).length);
export const niceTop = (value) =>
  [5, 10, 20, 30, 40, 50, 60, 80].find((top) => value <= top) ?? 100;

export function missing(sentence) {
  return element("p", { class: "missing" }, sentence);
}

/** The unit in which a span of seconds reads best. */
function horizontal(longest, x) {
  if (x === "step") return { unit: 1, label: "steps" };
  if (longest > 3 * 3600) return { unit: 3600, label: "hours of training" };
  if (longest > 180) return { unit: 60, label: "minutes of training" };
  return { unit: 1, label: "seconds of training" };
}

/** A mark whose elements say which system they belong to. */
function ofSystem(system, mark, data, options) {
  return mark(data, {
    ...options,
    render(index, scales, values, dimensions, context, next) {
      const node = next(index, scales, values, dimensions, context);
      node?.setAttribute("data-system", system.id);
      return node;
    },
  });
}

/** Where a training passed to its next stage: named upright lines, seen while it is lit. */
function stageMarks(system, x, unit) {
  const later = system.stages.slice(1).map((stage) => ({ ...stage, at: stage[x][0] / unit }));
  const options = { x: "at", className: "only-lit" };
  return [
    ofSystem(system, Plot.ruleX, later, { ...options, stroke: system.colour,
      strokeDasharray: "1 3", strokeWidth: 1.3, strokeLinecap: "round" }),
    ofSystem(system, Plot.text, later, { ...options, frameAnchor: "top", dx: 4, dy: -14,
      textAnchor: "start", fontStyle: "italic", text: "name", fill: system.colour }),
  ];
}

/** Names at the right edge, pushed apart until none covers another, each tied to its curve. */
function endLabels(lines, { x, top, height, last, unit, marginTop, marginBottom }) {
  const span = height - marginTop - marginBottom;
  const toPixel = d3.scaleLinear([0, top], [span, 0]);
  const labels = lines.map(({ system, points }) => {
    const end = points.at(-1);
    return { system, end, pixel: toPixel(end.accuracy) };
  });
  labels.sort((a, b) => a.pixel - b.pixel || b.end[x] - a.end[x]);
  const gap = Math.min(15, span / labels.length);
  for (let i = 1; i < labels.length; i++)
    labels[i].pixel = Math.max(labels[i].pixel, labels[i - 1].pixel + gap);
  let floor = span;
  for (const label of [...labels].reverse()) {
    label.pixel = Math.min(label.pixel, floor);
    floor = label.pixel - gap;
  }
  return labels.flatMap(({ system, end, pixel }) => [
    ofSystem(system, Plot.link, [end], {
      x1: end[x] / unit, y1: end.accuracy, x2: last / unit, y2: toPixel.invert(pixel),
      stroke: system.colour, strokeOpacity: 0.45, strokeDasharray: "1 3", strokeLinecap: "round",
    }),
    ofSystem(system, Plot.text, [end], {
      x: last / unit, y: toPixel.invert(pixel), text: () => clip(system.label), dx: 9,
      textAnchor: "start", fill: system.colour, fontWeight: 600,
    }),
  ]);
}

function tooltip(points, y, lines) {
  return Plot.tip(points, Plot.pointer({
    x: "across", y, title: (point) => lines(point).join("\n"), maxRadius: 30, ...TIP,
  }));
}

/** Tells `highlight` which system's point lies under the pointer. */
function linked(plot, highlight) {
  if (highlight) plot.addEventListener("input", () => highlight(plot.value?.system.id ?? null));
  return plot;
}

/** Adds to every point the mean of its neighbourhood, taken on the logarithmic scale we draw. */
function smooth(points) {
  const reach = Math.floor(points.length / 40);
  const logs = points.map((point) => Math.log(point.loss));
  const sums = [0, ...d3.cumsum(logs)];
  return points.map((point, index) => {
    const from = Math.max(0, index - reach);
    const to = Math.min(points.length, index + reach + 1);
    return { ...point, smooth: Math.exp((sums[to] - sums[from]) / (to - from)) };
  });
}

/** More points than pixels only cost time. */
function thin(points, most = 400) {
  const step = Math.ceil(points.length / most);
  return points.filter((_, index) => index % step === 0 || index === points.length - 1);
}

/** A round number on either side of zero, as near to the longest bars as it comes. */
function roundTicks({ right, wrong }) {
  const below = (value) => d3.greatest(d3.ticks(0, value, 2).filter(Number.isInteger));
  // Two numbers too near to zero would cover it: the shorter side then goes without.
  const sides = [[-1, wrong], [1, right]].filter(([, most]) => most > 0.25 * (right + wrong));
  return [0, ...sides.map(([sign, most]) => sign * below(most))];
}

/** 1, 2 and 5 of every decade; over many decades the ones alone; within one, whatever is round. */
function logarithmicTicks([low, high]) {
  const decades = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const digits = decades.length > 5 ? [1] : [1, 2, 5];
  const ticks = decades
    .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
    .filter((tick) => tick >= low && tick <= high);
  return ticks.length > 1 ? ticks : d3.ticks(low, high, 4);
}
