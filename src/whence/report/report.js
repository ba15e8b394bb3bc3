/* The page of a study: a headline, the table, the pictures, the questions, how to repeat it.
   Reads the JSON that stands in the page and nothing else. */

import {
  accuracyCurves, duration, element, lossCurves, missing, percent, probabilityPicture, range,
  separation, seriesOf, swatch, whole,
} from "./charts.js";
import { copyButton, fit, linkHighlights, saveJson } from "./interaction.js";
import { questionList, questionRows } from "./questions.js";
import { knowledgePart, resultsPart } from "./tables.js";

/** Draw the study into `root`. */
export function show(study, root) {
  const series = seriesOf(study);
  const best = highest(series.filter((system) => !system.baseline)) ?? highest(series);
  // The open book reads the documents: it is what could be known, and no guess to be compared with.
  const reference = highest(series.filter((system) => system.baseline && !system.pretrained));
  const highlight = linkHighlights(root);
  const parts = [
    ["results", "Results", resultsPart(series, best, reference)],
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
  const names = ["◐ automatic", "☀ light", "☾ dark"];
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
    ["started", study.started.replace("T", " ").slice(0, 16) +
      (study.started.endsWith("+00:00") ? " UTC" : "")],
    ["took", duration(study.seconds)],
    ["machine", [machine.cpu, machine.threads && `${machine.threads} threads`]
      .filter(Boolean).join(", ")],
    ["commit", versions.commit],
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
  const spread = best.interval
    ? ` (bootstrap interval ${range(best.interval)})` : "";
  const sentence = [
    element("strong", { style: `--colour:${best.colour}` }, best.label),
    ` answers `, element("strong", { class: "score" }, percent(best.accuracy)),
    ` of the ${best.total === null ? "" : `${whole(best.total)} `}${study.split} questions` +
      `${spread} on ${study.corpus.name}`,
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

function learningPart(series, reference, highlight) {
  const trained = series.filter((system) => !system.baseline);
  if (trained.length === 0) return null;
  // The training with the most stages tells their order; others may have left some out.
  const fullest = d3.sort(trained, (system) => -system.stages.length);
  const stages = [...new Set(fullest.flatMap((system) => system.stages.map(({ name }) => name)))]
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
      "The strips below show how long each stage took.",
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
            "of pairs (50\u00a0%: luck)."));
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
    series.filter(({ config }) => config).length > 1 ? element("p", { class: "note" },
      "In the configurations, lines that differ from the first system's are marked.") : "",
    ...series.map((system) => element("details", { "data-system": system.id },
      element("summary", {}, swatch(system), system.label,
        system.run ? element("span", { class: "quiet" }, ` ${system.run}`) : null),
      element("div", { class: "grid" },
        element("div", {}, Object.keys(system.describe ?? {}).length ? definitions(system.describe)
          : missing("Nothing was trained.")),
        system.config ? configuration(system.config, first) : null))),
  ];
}

/** The lines of a configuration, each with the table that it stands in; [[stages]] are counted. */
function placed(lines) {
  let [table, count] = ["", 0];
  return lines.map((line) => {
    if (line.startsWith("[[")) table = `${line} ${++count}`;
    else if (line.startsWith("[")) table = line;
    return [line, `${table}\n${line}`];
  });
}

/** A configuration whose lines that differ from the first system's stand out. */
function configuration(text, first) {
  const usual = new Set(placed(first).map(([, place]) => place));
  return element("div", { class: "code" }, element("pre", { tabindex: 0, role: "region",
    "aria-label": "Configuration" }, element("code", {},
    ...placed(text.split("\n")).flatMap(([line, place]) => [usual.has(place) ? line
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

const holder = document.getElementById("study");
if (holder) show(JSON.parse(holder.textContent), document.getElementById("report"));
