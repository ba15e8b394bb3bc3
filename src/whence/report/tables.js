/* The tables of systems: results with intervals and cost, and accuracy by what the text holds. */

import {
  duration, element, intervalAxis, intervalBar, niceTop, percent, range, short, swatch, whole,
  wilson,
} from "./charts.js";
import { copyButton } from "./interaction.js";

export function resultsPart(series, best, reference) {
  const ends = series.flatMap((system) => [system.accuracy ?? 0, ...(system.interval ?? [])]);
  const top = niceTop(d3.max(ends));
  const cheapest = d3.min(series.filter(({ baseline, seconds }) => !baseline && seconds > 0),
    ({ seconds }) => seconds);
  const cost = ({ baseline, seconds }) => (baseline || !seconds ? null : seconds / cheapest);
  const columns = [
    ["label", "System", (system) => system.label.toLowerCase(), null],
    ["accuracy", "Accuracy", (system) => system.accuracy, (system) => percent(system.accuracy)],
    ["interval", null, null, null],
    ["correct", "Right", (system) => system.correct, ({ correct, total }) =>
      correct === null ? "–" : `${whole(correct)} / ${whole(total)}`],
    ["parameters", "Parameters", (system) => system.parameters, ({ parameters }) =>
      parameters ? short(parameters) : "–"],
    ["seconds", "Training", (system) => system.seconds, (system) =>
      system.baseline || system.seconds === null ? "–" : duration(system.seconds)],
    ["speed", "Characters/s", (system) => system.characters_per_second, (system) =>
      system.characters_per_second ? short(system.characters_per_second) : "–"],
    ["cost", "Cost", cost, (system) =>
      cost(system) === null ? "–" : `${cost(system).toFixed(cost(system) < 10 ? 1 : 0)} ×`],
  ];
  const compared = series.filter((system) => cost(system) !== null).length > 1;
  if (!compared) columns.pop();
  const sort = { key: null, descending: false };
  const table = element("table", { class: "systems" });

  function draw() {
    const value = columns.find(([key]) => key === sort.key)?.[2];
    const order = sort.descending ? d3.descending : d3.ascending;
    const arranged = (systems) => (value ? d3.sort(systems, (a, b) => order(value(a), value(b)))
      : systems);
    const group = (systems, name) => systems.length === 0 ? null
      : element("tbody", { class: name }, name === "trained" ? null : groupHeading(columns.length),
        ...arranged(systems).map(row));
    table.replaceChildren(...[
      element("thead", {}, element("tr", {}, ...columns.map(heading))),
      group(series.filter(({ baseline }) => !baseline), "trained"),
      group(series.filter(({ baseline }) => baseline), "baselines"),
    ].filter(Boolean));
  }
  function heading([key, title]) {
    if (key === "interval") return element("th", { class: "interval-cell" }, intervalAxis(top));
    const active = sort.key === key;
    return element("th", { scope: "col", class: key, "aria-sort": !active ? "none"
      : sort.descending ? "descending" : "ascending" },
      element("button", { type: "button", "data-key": key, click: () => sortBy(key) }, title,
        element("span", { "aria-hidden": "true" }, !active ? "" : sort.descending ? " ↓" : " ↑")));
  }
  function sortBy(key) {
    const first = key !== "label";
    if (sort.key !== key) Object.assign(sort, { key, descending: first });
    else if (sort.descending === first) sort.descending = !first;
    else sort.key = null;
    draw();
    table.dispatchEvent(new CustomEvent("redrawn", { bubbles: true }));
    table.querySelector(`button[data-key="${key}"]`).focus();
  }
  function row(system) {
    return element("tr", { "data-system": system.id, class: system === best ? "best" : null },
      ...columns.map(([key, , , text]) => {
        if (key === "label")
          return element("th", { scope: "row" }, element("button", { type: "button",
            class: "pin", "data-pin": system.id, "aria-pressed": "false",
            title: "highlight this system everywhere" }, swatch(system), system.label));
        if (key === "interval")
          return element("td", { class: "interval-cell" },
            intervalBar(system, top, reference?.accuracy ?? null));
        return element("td", { class: key }, text(system));
      }));
  }
  draw();
  return [
    element("div", { class: "wide" }, table),
    element("p", { class: "note" },
      "Bars: accuracy by exact match; whiskers: bootstrap interval",
      reference ? "; thin line: the best baseline" : "", ". ",
      compared ? "Cost: training time relative to the quickest training. Point at a system to " +
        "see it in every picture; press it to keep it. " : "",
      copyButton(() => markdown(series, columns), "Copy the table as Markdown")),
  ];
}

const groupHeading = (columns) => element("tr", { class: "group" },
  element("th", { scope: "rowgroup", colspan: columns }, "baselines"));

function markdown(series, columns) {
  const shown = columns.filter(([key]) => key !== "interval" && key !== "label");
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const interval = (system) => (system.interval ? range(system.interval) : "–");
  return [
    line(["System", "Interval", ...shown.map(([, title]) => title)]),
    line(["---", "---:", ...shown.map(() => "---:")]),
    ...series.map((system) => line([system.label.replaceAll("|", "\\|"), interval(system),
      ...shown.map(([, , , text]) => text(system))])),
  ].join("\n");
}

const GROUPS = [
  ["stated", "the answer stands in the text", ({ stated }) => stated === true],
  ["seen, not stated", "the person is in the text, the answer is not",
    ({ stated, seen }) => stated === false && seen === true],
  ["never seen", "no document of the person", ({ stated, seen }) => seen === false && !stated],
];

/** Accuracy by what the pretraining text holds: knowledge on the left, guessing on the right. */
export function knowledgePart(series) {
  const counted = series.map((system) => ({ system, groups: GROUPS.map(([, , belongs]) => {
    const answers = system.answers.filter((one) => one.correct !== null && belongs(one));
    return { total: answers.length, correct: answers.filter(({ correct }) => correct).length };
  }) }));
  const used = GROUPS.map((group, index) => ({ group, index,
    total: d3.max(counted, ({ groups }) => groups[index].total) })).filter(({ total }) => total);
  if (used.length < 2) return null;
  const row = ({ system, groups }) => element("tr", { "data-system": system.id },
    element("th", { scope: "row" }, swatch(system), system.label),
    ...used.map(({ index }) => {
      const { correct, total } = groups[index];
      if (!total) return element("td", {}, "–");
      const accuracy = (100 * correct) / total;
      return element("td", {}, element("div", { class: "with-bar" },
        element("span", {}, percent(accuracy)),
        intervalBar({ ...system, accuracy, interval: wilson(correct, total) }, 100)));
    }));
  const rows = (baseline) => {
    const these = counted.filter(({ system, groups }) => system.baseline === baseline &&
      groups.some(({ total }) => total));
    if (these.length === 0) return null;
    return element("tbody", { class: baseline ? "baselines" : "trained" },
      baseline ? groupHeading(used.length + 1) : null, ...these.map(row));
  };
  return [
    element("p", { class: "intro" }, "The same accuracies, split by what the pretraining text ",
      "holds about the person asked for. What was never stated can only be guessed."),
    element("div", { class: "wide" }, element("table", { class: "knowledge" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "System"),
        ...used.map(({ group, total }) => element("th", { scope: "col", title: group[1] },
          group[0], element("small", {}, ` ${whole(total)} questions`))))),
      rows(false), rows(true))),
    element("p", { class: "note" }, "Whiskers: Wilson's 95 % interval."),
  ];
}
