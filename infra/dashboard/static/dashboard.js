"use strict";
// Asks the SQL endpoint that serves this page; every answer is aggregated there, so that the size of
// a run never reaches the browser: at most POINTS_MAX points a line and ROWS_MAX rows a table.
// Cards that follow the range say so by the parameter `since`, in seconds since 1970, 0 for the whole
// run; the others say on the card what they tell of.
const POINTS_MAX = 400;
const ROWS_MAX = 50;
const ALARMS_MAX = 12;
const RUNS_MAX = 200;
const EVERY_MS = 5000;
const ANSWER_MS = 20000;
const REST = 9;
const REST_MAX_MS = 60000;
const $ = (id) => document.getElementById(id);
const plots = new Map();

// Counts what the user chose: an answer to an earlier choice is not drawn over a later one.
let choice = 0;
class Outdated extends Error {}

async function ask(statement, parameters = {}) {
  const chosen = choice;
  const query = new URLSearchParams({ default_format: "JSONCompact" });
  for (const [name, value] of Object.entries(parameters)) query.set(`param_${name}`, value);
  const answer = await fetch(`/?${query}`, {
    method: "POST", body: statement, signal: AbortSignal.timeout(ANSWER_MS),
  });
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
  const { meta, data } = await answer.json();
  if (chosen !== choice) throw new Outdated();
  return data.map((row) => Object.fromEntries(meta.map((column, at) => [column.name, row[at]])));
}

const number = (value) => (value === null || value === undefined ? null : Number(value));
function show(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(Number(value))) return "-";
  const plain = Number(value);
  if (Number.isInteger(plain)) return plain.toLocaleString("en");
  if (Math.abs(plain) >= 1000) return Math.round(plain).toLocaleString("en");
  return String(Number(plain.toPrecision(digits)));
}
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
const colour = (at) => getComputedStyle(document.documentElement).getPropertyValue(`--c${at % 6}`).trim();
const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
// Steps between the ticks of an axis that counts updates.
const WHOLE = [1, 2, 5].flatMap((one) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => one * 10 ** power)).sort((one, other) => one - other);
// Steps between those of an axis of minutes, in seconds; a tick tells the day where one begins.
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1440, 2880, 7200, 14400, 43200].map((minutes) => 60 * minutes);
const moment = (tick) => (tick % 86400 ? clock(tick).slice(0, 5) : new Date(tick * 1000).toISOString().slice(5, 10));
const faint = (tint) => `${tint}33`;

// Where no cursor points, the legend tells the newest values.
const newest = (drawn) => { if (drawn.cursor.idx === null || drawn.cursor.idx === undefined) drawn.setLegend({ idx: drawn.data[0].length - 1 }, false); };

// x: numbers; lines: [{label, values, tint, dash, edge, band, aside}]; edge: drawn as the rim of a band only;
// band: index of the line that bounds it below; aside: told in the legend, not drawn.
// per: how many updates a point holds, when x is the first of them.
function plot(place, x, lines, { time = false, unit = "", per = 1 } = {}) {
  const box = $(place);
  const shape = JSON.stringify([lines.map((line) => [line.label, line.tint]), time, per, box.clientWidth]);
  const data = [x, ...lines.map((line) => line.values)];
  const old = plots.get(place);
  if (old && old.shape === shape) { old.plot.setData(data); newest(old.plot); return; }
  if (old) old.plot.destroy();
  box.replaceChildren();
  if (!x.length) { plots.delete(place); box.append(element("p", { className: "empty", textContent: "nothing yet" })); return; }
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--dim").trim();
  const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  const options = {
    width: box.clientWidth, height: 210, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time } }, hooks: { setCursor: [newest] },
    axes: [time ? { ...axis, incrs: MINUTES, values: (_, ticks) => ticks.map(moment) } : { ...axis, incrs: WHOLE }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => show(tick)) }],
    series: [
      time ? { label: "time", value: (_, seconds) => (seconds === null ? "-" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")) } : { label: per > 1 ? "updates" : "update", value: (_, first) => (first === null ? "-" : per > 1 ? `${first} to ${first + per - 1}` : first) },
      ...lines.map((one) => ({
        label: one.label, stroke: one.tint, width: one.edge || one.aside ? 0 : 1.8, dash: one.dash, class: one.edge ? "edge" : one.aside ? "aside" : "line",
        scale: one.aside ? "aside" : "y", spanGaps: true, points: { show: x.length < 3 && !one.edge && !one.aside },
        value: (_, value) => (value === null || value === undefined ? "-" : `${show(value)} ${one.aside ? "" : unit}`),
      })),
    ],
    bands: lines.flatMap((one, at) => (one.band === undefined ? [] : [{ series: [at + 1, one.band + 1], fill: faint(one.tint) }])),
  };
  const drawn = new uPlot(options, data, box);
  plots.set(place, { shape, plot: drawn });
  newest(drawn);
}

// total: how many there are, where more may be than are shown.
function table(place, columns, rows, cell = {}, total = rows.length) {
  const box = $(place);
  if (!rows.length) { box.replaceChildren(element("p", { className: "empty", textContent: "nothing" })); return; }
  const numeric = (name) => rows.every((row) => row[name] === null || typeof row[name] === "number");
  const head = element("tr", {}, ...columns.map((name) => element("th", { textContent: name, className: numeric(name) ? "number" : "" })));
  const body = rows.map((row) => element("tr", {}, ...columns.map((name) => {
    const made = element("td", { className: numeric(name) ? "number" : name === "what" ? "long" : "" });
    made.append(cell[name] ? cell[name](row) : typeof row[name] === "number" ? show(row[name]) : row[name] ?? "-");
    return made;
  })));
  const more = total > rows.length ? [element("p", { className: "hint", textContent: `${show(rows.length)} of ${show(total)}` })] : [];
  box.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)), ...more);
}

function bars(place, rows, unit) {
  const largest = Math.max(...rows.map((row) => row.value), 1e-9);
  const made = rows.map((row, at) => {
    const bar = element("i");
    bar.style.width = `${(100 * row.value) / largest}%`;
    bar.style.background = `var(--c${row.tint ?? at % 6})`;
    return element("div", { className: "bar" }, element("span", { textContent: row.label }), element("span", {}, bar), element("em", { textContent: `${show(row.value)}${unit}` }));
  });
  $(place).replaceChildren(...(made.length ? made : [element("p", { className: "empty", textContent: "nothing yet" })]));
}

// Newest epoch first: a rolled-back update has the ordinal of the one that replaced it.
const SURVIVORS = `(SELECT ordinal, max(epoch) FROM learner_events
  WHERE run_id = {run:String} AND kind = 'step' GROUP BY ordinal HAVING toUnixTimestamp64Milli(max(ts)) / 1000 >= {since:Float64})`;

// A point of several updates tells the percentiles of all their trajectories, as of one batch.
async function reward(asked) {
  const rows = await ask(`
    SELECT intDiv(ordinal - 1, {per:UInt32}) * {per:UInt32} + 1 AS x, m.environment AS environment,
      avg(m.reward) AS mean, if(count() > 1, stddevSamp(m.reward), 0) AS spread
    FROM trained_members AS m
    WHERE run_id = {run:String} AND (ordinal, epoch) IN ${SURVIVORS} GROUP BY x, environment ORDER BY x`, asked);
  const x = [...new Set(rows.map((row) => number(row.x)))];
  const names = [...new Set(rows.map((row) => row.environment))].sort();
  const lines = names.flatMap((name, at) => {
    const by = new Map(rows.filter((row) => row.environment === name).map((row) => [number(row.x), row]));
    const pick = (times) => x.map((one) => (by.has(one) ? number(by.get(one).mean) + times * number(by.get(one).spread) : null));
    const tint = colour(at);
    return [
      { label: name, values: pick(0), tint },
      { label: `${name}, below`, values: pick(-1), tint, edge: true },
      { label: `${name}, above`, values: pick(1), tint, edge: true, band: 3 * at + 1 },
    ];
  });
  plot("reward", x, lines, { per: asked.per });
}

async function staleness(asked) {
  const rows = await ask(`
    SELECT intDiv(ordinal - 1, {per:UInt32}) * {per:UInt32} + 1 AS x,
      quantilesExact(0.5, 0.95, 0.99)(m.lag_steps) AS lag, quantilesExact(0.5, 0.95, 0.99)(m.age_ms / 1000) AS age, count() AS n
    FROM trained_members AS m
    WHERE run_id = {run:String} AND (ordinal, epoch) IN ${SURVIVORS} GROUP BY x ORDER BY x`, asked);
  const x = rows.map((row) => number(row.x));
  const lines = (kind) => [
    ...["50", "95", "99"].map((part, at) => ({ label: `p${part}`, values: rows.map((row) => number(row[kind][at])), tint: colour(at) })),
    { label: "n", values: rows.map((row) => number(row.n)), aside: true },
  ];
  plot("lag", x, lines("lag"), { unit: "updates", per: asked.per });
  plot("age", x, lines("age"), { unit: "s", per: asked.per });
}

// Returns the rates of the range, and how long the run has taken.
async function throughput(asked) {
  const [rows, [whole]] = await Promise.all([
    ask(`SELECT intDiv(toUnixTimestamp(t), 60 * {perminute:UInt32}) * 60 * {perminute:UInt32} AS x,
        sum(raw_tokens) AS raw, sum(trained_tokens) AS trained
      FROM throughput_by_minute WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64}
      GROUP BY x ORDER BY x`, asked),
    ask("SELECT raw_tokens_per_s, effective_tokens_per_s, bound_tokens_per_s, bottleneck, wall_s FROM throughput WHERE run_id = {run:String}", asked),
  ]);
  const bound = number(whole?.bound_tokens_per_s);
  const rates = (kind) => rows.map((row) => number(row[kind]) / (60 * asked.perminute));
  plot("throughput", rows.map((row) => number(row.x)), [
    { label: "sampled", values: rates("raw"), tint: colour(0) },
    { label: "trained", values: rates("trained"), tint: colour(2) },
    { label: `bound of the whole run (${whole?.bottleneck ?? "-"})`, values: rows.map(() => bound), tint: colour(5), dash: [6, 5] },
  ], { time: true, unit: "tokens/s" });
  const sum = (kind) => rows.reduce((total, row) => total + number(row[kind]), 0) / asked.seconds;
  if (asked.since) return { raw: sum("raw"), trained: sum("trained"), wall: number(whole?.wall_s) };
  return { raw: number(whole?.raw_tokens_per_s), trained: number(whole?.effective_tokens_per_s), wall: number(whole?.wall_s) };
}

async function accounts(asked) {
  const rows = asked.since
    ? await ask(`SELECT outcome, reason, count() AS n FROM episode_fates WHERE run_id = {run:String}
        AND toUnixTimestamp64Milli(issued_at) / 1000 >= {since:Float64}
      GROUP BY outcome, reason ORDER BY n DESC LIMIT ${ROWS_MAX}`, asked)
    : await ask(`SELECT outcome, reason, n FROM trajectory_accounts WHERE run_id = {run:String} ORDER BY n DESC LIMIT ${ROWS_MAX}`, asked);
  const tints = { trained: 2, pending: 0, evaluated: 3, dropped: 1, abandoned: 4 };
  bars("accounts", rows.map((row) => ({ label: row.reason && row.reason !== "none" ? `${row.outcome}: ${row.reason}` : row.outcome, value: number(row.n), tint: tints[row.outcome] })), "");
  const sum = (outcome) => rows.filter((row) => row.outcome === outcome).reduce((total, row) => total + number(row.n), 0);
  return { trained: sum("trained"), pending: sum("pending"), dropped: sum("dropped"), abandoned: sum("abandoned") };
}

async function waits(asked) {
  const rows = await ask(`
    SELECT kind, cause, sum(w.spent_s) AS spent_s FROM wait_attribution AS w
    WHERE run_id = {run:String} AND (epoch, ordinal) IN (
      SELECT epoch, ordinal FROM learner_events WHERE run_id = {run:String} AND kind = 'step' AND toUnixTimestamp64Milli(ts) / 1000 >= {since:Float64}
    ) GROUP BY kind, cause ORDER BY kind = 'wait' DESC, spent_s DESC LIMIT ${ROWS_MAX}`, asked);
  bars("waits", rows.map((row) => ({ label: row.kind === "wait" ? `waits: ${row.cause}` : row.cause, value: number(row.spent_s), tint: row.kind === "wait" ? 1 : 0 })), " s");
}

async function quantities(asked) {
  const rows = await ask(`
    SELECT m.quantity AS quantity, any(c.unit) AS unit, quantilesTDigestMerge(0.5, 0.95, 0.99)(m.q) AS p, max(m.mx) AS most, sum(m.n) AS n
    FROM (
      SELECT quantity, q, mx, n FROM quantity_1h WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64}
      UNION ALL SELECT quantity, q, mx, n FROM quantity_1m
      WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64} AND toUnixTimestamp(toStartOfHour(t)) < {since:Float64}
    ) AS m LEFT JOIN quantity_catalogue AS c ON m.quantity = c.quantity
    GROUP BY quantity ORDER BY quantity LIMIT ${ROWS_MAX}`, asked);
  table("quantities", ["quantity", "unit", "p50", "p95", "p99", "max", "n"], rows.map((row) => ({
    quantity: row.quantity, unit: row.unit, p50: number(row.p[0]), p95: number(row.p[1]), p99: number(row.p[2]), max: number(row.most), n: number(row.n),
  })));
}

async function workers(asked) {
  const rows = await ask(`
    SELECT w.worker AS worker, w.role AS role, w.status AS status, w.starts AS starts, toString(w.seen_at) AS seen,
      if(v.worker = '', '', concat(toString(v.epoch), '/', toString(v.number))) AS version, if(v.worker = '', NULL, v.behind_updates) AS behind, count() OVER () AS total
    FROM workers_now AS w LEFT JOIN versions_served AS v ON w.worker = v.worker AND w.run_id = v.run_id
    WHERE w.run_id = {run:String} ORDER BY role, worker LIMIT ${ROWS_MAX}`, asked);
  table("workers", ["worker", "role", "status", "version", "behind", "starts", "seen"], rows.map((row) => ({
    ...row, starts: number(row.starts), behind: row.behind === null ? null : number(row.behind), version: row.version || "-", seen: row.seen.slice(0, 19),
  })), {}, number(rows[0]?.total ?? 0));
}

async function alarms(asked) {
  const [letters, doubts, refused, lengths] = await Promise.all([
    ask(`SELECT origin_topic, consumer, error_class, example, n, toString(last_at) AS at, count() OVER () AS total FROM dead_letters_by_error WHERE run_id = {run:String} ORDER BY last_at DESC LIMIT ${ALARMS_MAX}`, asked),
    ask(`SELECT doubt, worker, n, count() OVER () AS total FROM doubtful_rows WHERE run_id = {run:String} ORDER BY n DESC LIMIT ${ALARMS_MAX}`, asked),
    ask(`SELECT worker_id, detail, toString(ts) AS at, count() OVER () AS total FROM refreshes WHERE run_id = {run:String} AND kind = 'failed' ORDER BY ts DESC LIMIT ${ALARMS_MAX}`, asked),
    skewed(asked),
  ]);
  table("alarms", ["alarm", "where", "n", "what", "last"], [
    ...letters.map((row) => ({ alarm: "dead letter", where: `${row.origin_topic}, ${row.consumer}`, n: number(row.n), what: `${row.error_class}: ${row.example}`, last: row.at.slice(0, 19) })),
    ...lengths,
    ...refused.map((row) => ({ alarm: "refresh failed", where: row.worker_id, n: 1, what: row.detail, last: row.at.slice(0, 19) })),
    ...doubts.map((row) => ({ alarm: "doubtful rows", where: row.worker, n: number(row.n), what: row.doubt, last: "-" })),
  ], { alarm: (row) => element("span", { className: "alarm", textContent: row.alarm }) }, lengths.length + [letters, refused, doubts].reduce((sum, found) => sum + number(found[0]?.total ?? 0), 0));
}

// Groups every episode of the run, so that of a very long one it may end at the limit of a query:
// that is said, and the other alarms stand.
async function skewed(asked) {
  try {
    const rows = await ask(`SELECT part, offered, trained, distance FROM selection_by_length WHERE run_id = {run:String} AND is_alarm ORDER BY part DESC LIMIT ${ALARMS_MAX}`, asked);
    return rows.map((row) => ({
      alarm: "trained lengths differ", where: number(row.part) < 0 ? "whole run" : `window ${row.part} of 1,000`, n: number(row.offered) - number(row.trained),
      what: `${show(number(row.trained))} of ${show(number(row.offered))} were trained, and their lengths stand ${show(number(row.distance))} apart from all (0.1 is allowed)`, last: "-",
    }));
  } catch (error) {
    if (error instanceof Outdated) throw error;
    return [{ alarm: "lengths not compared", where: "whole run", n: 1, what: error.message, last: "-" }];
  }
}

async function episodes(asked) {
  const rows = await ask(`
    SELECT episode_id, environment, reward, termination, action_tokens, turns, tool_calls, toString(ts) AS at FROM trajectories
    WHERE run_id = {run:String} AND toUnixTimestamp64Milli(ts) / 1000 >= {since:Float64} ORDER BY ts DESC LIMIT ${ROWS_MAX}`, asked);
  table("episodes", ["episode", "environment", "reward", "termination", "tokens", "turns", "tools", "at"], rows.map((row) => ({
    episode: row.episode_id, environment: row.environment, reward: number(row.reward), termination: row.termination,
    tokens: number(row.action_tokens), turns: number(row.turns), tools: number(row.tool_calls), at: row.at.slice(0, 19),
  })), { episode: (row) => element("button", { className: "episode", title: row.episode, textContent: row.episode.length > 24 ? `…${row.episode.slice(-16)}` : row.episode, onclick: () => { location.hash = `episode=${row.episode}`; } }) });
}

async function runs() {
  const rows = await ask(`
    SELECT run_id FROM (
      SELECT run_id, began_ms FROM run_wall
      UNION ALL SELECT run_id, toUnixTimestamp64Milli(min(ts)) AS began_ms FROM control_events WHERE kind = 'start' GROUP BY run_id
    ) GROUP BY run_id ORDER BY min(began_ms) DESC LIMIT ${RUNS_MAX}`);
  const known = rows.map((row) => row.run_id);
  const select = $("run");
  if (known.join() === [...select.options].map((one) => one.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...known.map((one) => element("option", { value: one, textContent: one })));
  if (known.includes(chosen)) select.value = chosen;
}

// What is asked of a run: a range ends with its newest record, which of a living run is a sign of life
// from a worker, and begins with a whole minute, as the rollups do. A point holds so many updates or
// minutes that the points fit, the one that both ends cut with them.
async function extent(run) {
  const [ends] = await ask(`
    SELECT least(max(ended), toUnixTimestamp(now())) AS newest, min(began) AS oldest FROM (
      SELECT ended_ms / 1000 AS ended, began_ms / 1000 AS began FROM run_wall WHERE run_id = {run:String}
      UNION ALL SELECT toUnixTimestamp64Milli(max(ts)) / 1000, toUnixTimestamp64Milli(min(ts)) / 1000 FROM worker_states WHERE run_id = {run:String} HAVING count() > 0
    )`, { run });
  const newest = number(ends.newest);
  const range = Number($("range").value);
  const since = range ? Math.floor((newest - range) / 60) * 60 : 0;
  const [updates] = await ask(`
    SELECT max(ordinal) AS newest, argMax(reward_mean, ts) AS reward, count() AS n, max(ordinal) - minIf(ordinal, toUnixTimestamp64Milli(ts) / 1000 >= {since:Float64}) + 1 AS wide
    FROM learning_by_step WHERE run_id = {run:String}`, { run, since });
  const seconds = Math.max(1, newest - Math.max(since, number(ends.oldest)));
  const fit = (count) => Math.max(1, Math.ceil(count / (POINTS_MAX - 1)));
  return { run, since, newest, seconds, updates, per: fit(number(updates.wide)), perminute: fit(seconds / 60) };
}

function scopes({ since, per }) {
  for (const place of document.querySelectorAll(".scope")) place.textContent = since ? place.dataset.range : place.dataset.whole;
  for (const place of document.querySelectorAll(".per")) place.textContent = per > 1 ? `; a point is of ${per} updates together` : "";
}

function figures({ since, updates }, rates, sums) {
  const [issued, rate] = since ? [", of those issued in the range", ", in the range"] : ["", ""];
  const facts = [
    ["updates", number(updates.newest)],
    ["reward, newest update", number(updates.n) ? number(updates.reward) : null],
    [`episodes trained${issued}`, sums.trained], [`pending${issued}`, sums.pending], [`dropped${issued}`, sums.dropped], [`abandoned${issued}`, sums.abandoned],
    [`sampled tokens/s${rate}`, rates.raw], [`trained tokens/s${rate}`, rates.trained], ["wall clock of the whole run, s", rates.wall],
  ];
  $("figures").replaceChildren(...facts.map(([name, value]) => element("div", { className: "figure" }, element("b", { textContent: show(value) }), element("span", { textContent: name }))));
}

// The sink answers on the thread on which it writes: after a look it is left alone for REST times as
// long as the look took, so that a page of a long run takes a tenth of it, but for a minute at most.
let busy = false;
let restUntil = 0;
async function renew() {
  if (busy || document.hidden || performance.now() < restUntil) return;
  busy = true;
  const chosen = choice;
  const began = performance.now();
  try {
    await runs();
    const run = $("run").value;
    if (!run) { $("state").textContent = "no run yet"; return; }
    const asked = await extent(run);
    const [rates, sums] = await Promise.all([throughput(asked), accounts(asked), reward(asked), staleness(asked), waits(asked), quantities(asked), workers(asked), alarms(asked), episodes(asked)]);
    scopes(asked);
    figures(asked, rates, sums);
    document.body.classList.remove("waiting");
    $("state").className = "";
    $("state").textContent = `as of ${clock(Date.now() / 1000)} UTC${asked.since ? `, from ${clock(asked.since)} to ${clock(asked.newest)}` : ""}`;
  } catch (error) {
    if (error instanceof Outdated) return;
    $("state").className = "failed";
    $("state").textContent = `no answer: ${error.message} (a sink that died is started again while its run goes on; of a run that is over the page is served by "sluice dashboard")`;
  } finally {
    busy = false;
    restUntil = performance.now() + Math.min(REST_MAX_MS, REST * (performance.now() - began));
    if (chosen !== choice) { restUntil = 0; renew(); }
  }
}

function redraw() {
  choice += 1;
  restUntil = 0;
  document.body.classList.add("waiting");
  $("state").className = "";
  $("state").textContent = "loading";
  for (const one of plots.values()) one.plot.destroy();
  plots.clear();
  renew();
}
$("run").addEventListener("change", redraw);
$("range").addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", () => { clearTimeout(window.resized); window.resized = setTimeout(redraw, 300); });
setInterval(renew, EVERY_MS);
renew();
