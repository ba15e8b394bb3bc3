/* The page of a study: a headline, the table, the pictures, the questions, how to repeat it.
   Reads the JSON that stands in the page and nothing else. */

import {
  accuracyCurves, duration, element, intervalAxis, intervalBar, lossCurves, missing, niceTop,
  percent, probabilityPicture, separation, seriesOf, short, swatch, whole, wilson,
} from "./charts.js";
import { questionList, questionRows } from "./questions.js";

/** Draw the study into `root`. */
export function show(study, root) {
  const series = seriesOf(study);
  const best = highest(series.filter((system) => !system.baseline)) ?? highest(series);
  const reference = highest(series.filter((system) => system.baseline));
  const highlight = linkHighlights(root);
  const parts = [
    ["results", "Results", resultsPart(study, series, best, reference)],
    ["learning", "Learning", learningPart(series, reference, highlight)],
    ["knowledge", "Knowledge", knowledgePart(series)],
    ["probability", "Probability", probabilityPart(series)],
    ["questions", "Questions", questionsPart(series, best)],
    ["repeat", "Repeat it", repeatPart(study, series)],
  ].filter(([, , content]) => content !== null);
  root.replaceChildren(
    navigation(parts),
    element("main", {},
      headline(study, series, best, reference),
      ...parts.map(([id, title, content]) =>
        element("section", { id, "aria-labelledby": `${id}-title` },
          element("h2", { id: `${id}-title` }, title), ...content)),
    ),
    element("footer", {}, `Drawn by Whence ${study.versions.whence ?? ""} from the study's JSON, `,
      "which is inside this file: ",
      element("button", { type: "button", class: "inline", click: () => saveJson(study) },
        "save it"), "."),
  );
}

const highest = (systems) =>
  d3.greatest(systems.filter(({ accuracy }) => accuracy !== null), ({ accuracy }) => accuracy);

function navigation(parts) {
  const themes = ["light dark", "light", "dark"];
  const names = ["◐ as the system", "☀ light", "☾ dark"];
  let theme = 0;
  return element("nav", { "aria-label": "Parts of the report" },
    element("a", { href: "#report", class: "brand" }, "whence"),
    element("div", { class: "links" },
      ...parts.map(([id, title]) => element("a", { href: `#${id}` }, title))),
    element("button", { type: "button", class: "theme", "aria-label": "Colour theme",
      click: (event) => {
        theme = (theme + 1) % themes.length;
        document.documentElement.style.colorScheme = themes[theme];
        event.currentTarget.textContent = names[theme];
      } }, names[0]));
}

function headline(study, series, best, reference) {
  const { corpus, machine, versions } = study;
  const facts = [
    ["corpus", corpus.name],
    ["documents", corpus.documents],
    ["characters", corpus.characters],
    [`${study.split} questions`, corpus.questions?.[study.split]],
    ["seed", study.seed],
    ["started", study.started.replace("T", " ").slice(0, 16)],
    ["took", duration(study.seconds)],
    ["machine", [machine.cpu, machine.threads && `${machine.threads} threads`]
      .filter(Boolean).join(", ")],
    ["commit", versions.commit && String(versions.commit).slice(0, 10)],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("header", {},
    element("p", { class: "eyebrow" }, series.length === 1 ? "A run" : "A study of ",
      series.length === 1 ? null : `${series.length} systems`),
    element("h1", {}, study.title),
    element("p", { class: "lead" }, ...leadSentence(study, best, reference)),
    ...comparison(series, best),
    element("dl", { class: "facts" }, ...facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {},
        typeof value === "number" && name !== "seed" ? whole(value) : String(value))))));
}

function leadSentence(study, best, reference) {
  if (!best) return ["No system of this study was evaluated yet."];
  const range = best.interval
    ? ` (bootstrap interval ${best.interval.map((end) => end.toFixed(1)).join("–")})` : "";
  const sentence = [
    element("strong", { style: `--colour:${best.colour}` }, best.label),
    ` answers `, element("strong", { class: "score" }, percent(best.accuracy)),
    ` of the ${best.total === null ? "" : `${whole(best.total)} `}${study.split} questions` +
      `${range} on ${study.corpus.name}`,
  ];
  if (!reference || best === reference) return [...sentence, "."];
  const points = best.accuracy - reference.accuracy;
  return [...sentence, `, ${Math.abs(points).toFixed(1)} points ` +
    `${points < 0 ? "below" : "above"} the best baseline, ${reference.label} ` +
    `(${percent(reference.accuracy)}).`];
}

/** Is the best really better than the next? The same questions were asked, so pairs can tell. */
function comparison(series, best) {
  const next = highest(series.filter((system) => !system.baseline && system !== best));
  if (!best || best.baseline || !next) return [];
  let [only, other] = [0, 0];
  for (const { answers } of questionRows([best, next])) {
    const [first, second] = [answers.get(best.id)?.correct, answers.get(next.id)?.correct];
    if (first === true && second === false) only += 1;
    if (first === false && second === true) other += 1;
  }
  if (only + other === 0) return [];
  const chance = signTest(only, other);
  const shown = chance < 0.001 ? "p < 0.001" : `p = ${chance.toFixed(3)}`;
  return [element("p", { class: "comparison" },
    `Next is ${next.label} with ${percent(next.accuracy)}: ${only} questions only the best gets ` +
    `right, ${other} only the next (sign test, ${shown}). ` +
    (chance < 0.05 ? "" : "These questions do not tell the two apart."))];
}

/** Two-sided exact sign test: how likely a split at least this uneven is between equals. */
function signTest(a, b) {
  const total = a + b;
  let logarithm = -total * Math.LN2;
  let sum = 0;
  for (let count = 0; count <= Math.min(a, b); count++) {
    sum += Math.exp(logarithm);
    logarithm += Math.log(total - count) - Math.log(count + 1);
  }
  return Math.min(1, 2 * sum);
}

function resultsPart(study, series, best, reference) {
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
  const sort = { key: null, descending: false };
  const table = element("table", { class: "systems" });

  function draw() {
    const value = columns.find(([key]) => key === sort.key)?.[2];
    const order = sort.descending ? d3.descending : d3.ascending;
    const arranged = (systems) => (value ? d3.sort(systems, (a, b) => order(value(a), value(b)))
      : systems);
    const group = (systems, name) => systems.length === 0 ? null
      : element("tbody", { class: name }, ...arranged(systems).map(row));
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
      Number.isFinite(cheapest) ? "Cost: training time relative to the quickest training. " : "",
      "Point at a system to see it in every picture; press it to keep it. ",
      copyButton(() => markdown(series, columns), "Copy the table as Markdown")),
  ];
}

function markdown(series, columns) {
  const shown = columns.filter(([key]) => key !== "interval" && key !== "label");
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const interval = (system) => system.interval?.map((end) => end.toFixed(1)).join("–") ?? "–";
  return [
    line(["System", "Interval", ...shown.map(([, title]) => title)]),
    line(["---", "---:", ...shown.map(() => "---:")]),
    ...series.map((system) => line([system.label.replaceAll("|", "\\|"), interval(system),
      ...shown.map(([, , , text]) => text(system))])),
  ].join("\n");
}

function learningPart(series, reference, highlight) {
  const trained = series.filter((system) => !system.baseline);
  if (trained.length === 0) return null;
  const stages = [...new Set(trained.flatMap((system) => system.stages.map(({ name }) => name)))]
    .filter((stage) => trained.some(({ loss }) => loss.some((point) => point.stage === stage)));
  let x = "seconds";
  const redraw = [];
  const figure = (title, caption, draw) => {
    const holder = element("div", { class: "chart" });
    redraw.push(fit(holder, (width) => draw(width), highlight));
    return element("figure", {}, element("figcaption", {}, element("strong", {}, title),
      caption ? ` ${caption}` : ""), holder);
  };
  const axis = element("div", { class: "segments", role: "group", "aria-label": "Horizontal axis" },
    ...[["seconds", "training time"], ["step", "steps"]].map(([key, text]) =>
      element("button", { type: "button", "aria-pressed": String(key === x),
        click: (event) => {
          x = key;
          for (const button of axis.children)
            button.setAttribute("aria-pressed", String(button === event.currentTarget));
          for (const draw of redraw) draw();
        } }, text)));
  const several = trained.length > 1;
  return [
    element("div", { class: "controls" }, several ? legend(trained) : null, axis),
    figure("Accuracy during training.",
      several ? "A dotted upright line in a system's colour: its next stage begins." : "",
      (width) => accuracyCurves(trained, { width, x, reference, highlight: highlight.show })),
    element("div", { class: "grid" }, ...(stages.length ? stages.map((stage) =>
      figure(`Loss, ${stage}.`, "",
        (width) => lossCurves(trained, stage, { width, x, highlight: highlight.show })))
      : [missing("No loss was logged.")])),
  ];
}

function legend(series) {
  return element("div", { class: "chips", role: "group", "aria-label": "Systems" },
    ...series.map((system) => element("button", { type: "button", class: "chip pin",
      "data-system": system.id, "data-pin": system.id, "aria-pressed": "false" },
      swatch(system), system.label)));
}

const GROUPS = [
  ["stated", "the answer stands in the text", ({ stated }) => stated === true],
  ["seen, not stated", "the person is in the text, the answer is not",
    ({ stated, seen }) => stated === false && seen === true],
  ["never seen", "no document of the person", ({ stated, seen }) => seen === false && !stated],
];

/** Accuracy by what the pretraining text holds: knowledge on the left, guessing on the right. */
function knowledgePart(series) {
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
  const rows = (baseline, name) => element("tbody", { class: name },
    ...counted.filter(({ system, groups }) => system.baseline === baseline &&
      groups.some(({ total }) => total)).map(row));
  return [
    element("p", { class: "intro" }, "The same accuracies, split by what the pretraining text ",
      "holds about the person asked for. What was never stated can only be guessed."),
    element("div", { class: "wide" }, element("table", { class: "knowledge" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "System"),
        ...used.map(({ group, total }) => element("th", { scope: "col", title: group[1] },
          group[0], element("small", {}, ` ${whole(total)} questions`))))),
      rows(false, "trained"), rows(true, "baselines"))),
    element("p", { class: "note" }, "Whiskers: Wilson's 95 % interval."),
  ];
}

function probabilityPart(series) {
  const telling = series.filter((system) => system.answers.some(
    ({ probability, correct }) => probability !== null && correct !== null) && !system.baseline);
  if (telling.length === 0) return null;
  return [
    element("p", { class: "intro" }, "Does a system know when it knows? Above: how often answers ",
      "of a probability were right; on the dashed line the probability can be taken at its word. ",
      "Below: how many such answers there were."),
    element("div", { class: "grid cards" }, ...telling.map((system) => {
      const holder = element("div", { class: "chart" });
      fit(holder, (width) => probabilityPicture(system, { width }));
      const marked = system.answers.filter((one) => one.probability !== null);
      const area = separation(system.answers);
      return element("figure", { "data-system": system.id },
        element("figcaption", {}, swatch(system), element("strong", {}, system.label)),
        holder,
        element("p", { class: "note" },
          `Mean probability ${percent(100 * d3.mean(marked, (one) => one.probability))}, `,
          `accuracy ${percent(system.accuracy)}. `,
          area === null ? "" : `A right answer outranks a wrong one in ${percent(100 * area)} ` +
            "of pairs (50 %: luck)."));
    })),
  ];
}

function questionsPart(series, best) {
  if (series.every(({ answers }) => answers.length === 0))
    return [missing("The study holds no answers.")];
  return [questionList(series, best)];
}

function repeatPart(study, series) {
  const block = (text, name) => element("div", { class: "code" },
    element("pre", { tabindex: 0, role: "region", "aria-label": name },
      element("code", {}, text)), copyButton(() => text, "Copy"));
  const { seed, started, seconds, machine, versions, corpus } = study;
  const origin = { seed, started, seconds, machine, versions, corpus };
  const first = series.find(({ config }) => config)?.config?.split("\n") ?? [];
  return [
    element("p", { class: "intro" }, "This command repeats the study:"),
    block(study.command, "Command"),
    element("div", { class: "grid" },
      element("div", {}, element("h3", {}, "Seed, machine, versions"), definitions(origin)),
      element("div", {}, element("h3", {}, "Recipe"), block(study.recipe, "Recipe"))),
    element("h3", {}, "What really ran"),
    ...series.map((system) => element("details", { "data-system": system.id },
      element("summary", {}, swatch(system), system.label,
        system.run ? element("span", { class: "quiet" }, ` ${system.run}`) : null),
      element("div", { class: "grid" },
        element("div", {}, Object.keys(system.describe ?? {}).length ? definitions(system.describe)
          : missing("Nothing was trained.")),
        system.config ? configuration(system.config, first) : null))),
  ];
}

/** A configuration whose lines that differ from the first system's stand out. */
function configuration(text, first) {
  const usual = new Set(first);
  return element("div", { class: "code" }, element("pre", { tabindex: 0, role: "region",
    "aria-label": "Configuration" }, element("code", {},
    ...text.split("\n").flatMap((line) => [usual.has(line) ? line
      : element("mark", { title: "differs from the first system" }, line), "\n"]))),
    copyButton(() => text, "Copy"));
}

function definitions(table) {
  return element("dl", { class: "tree" }, ...Object.entries(table).flatMap(([name, value]) => [
    element("dt", {}, name.replaceAll("_", " ")),
    element("dd", {}, value !== null && typeof value === "object" && !Array.isArray(value)
      ? definitions(value)
      : Array.isArray(value) ? value.map((one) => typeof one === "object" ? JSON.stringify(one)
        : String(one)).join(", ") : String(value ?? "–")),
  ]));
}

function copyButton(text, title) {
  return element("button", { type: "button", class: "copy", click: async (event) => {
    const button = event.currentTarget;
    button.textContent = (await copy(text())) ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = title), 1500);
  } }, title);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // An older browser, or one that gives a local file no clipboard: the way of before.
    const area = element("textarea", { class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function saveJson(study) {
  const address = URL.createObjectURL(
    new Blob([JSON.stringify(study, null, 1)], { type: "application/json" }));
  element("a", { href: address, download: "study.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Draw into `holder` at its width, and again whenever the width changes; returns the drawing. */
function fit(holder, draw, highlight = null) {
  let width = 0;
  const now = () => {
    if (width === 0) return;
    holder.replaceChildren(draw(width));
    highlight?.again();
  };
  new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next === width || next === 0) return;
    width = next;
    now();
  }).observe(holder);
  return now;
}

/** Pointing at (or tabbing to) anything of a system lights it everywhere; pressing pins it. */
function linkHighlights(root) {
  let pinned = null;
  let current = null;
  const draw = () => {
    root.classList.toggle("highlighting", current !== null);
    for (const node of root.querySelectorAll("[data-system]"))
      node.classList.toggle("lit", node.dataset.system === current);
    for (const node of root.querySelectorAll("[data-pin]"))
      node.setAttribute("aria-pressed", String(node.dataset.pin === pinned));
  };
  const show = (id) => {
    if ((id ?? pinned) === current) return;
    current = id ?? pinned;
    draw();
  };
  const over = (event) => show(event.target.closest?.("[data-system]")?.dataset.system ?? null);
  root.addEventListener("pointerover", (event) => {
    if (!event.target.closest?.(".chart svg")) over(event); // a chart speaks for itself
  });
  root.addEventListener("pointerleave", () => show(null));
  root.addEventListener("focusin", (event) => {
    if (event.target.matches(":focus-visible")) over(event);
  });
  root.addEventListener("click", (event) => {
    const pin = event.target.closest?.("[data-pin]");
    if (!pin) return;
    pinned = pinned === pin.dataset.pin ? null : pin.dataset.pin;
    current = pinned;
    draw();
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = current = null;
    draw();
  });
  return { show, again: draw };
}

const holder = document.getElementById("study");
if (holder) show(JSON.parse(holder.textContent), document.getElementById("report"));
