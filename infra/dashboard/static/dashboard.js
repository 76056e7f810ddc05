"use strict";
// Asks the SQL endpoint that serves this page; every answer is aggregated there, so that the size of
// a run never reaches the browser: at most POINTS_MAX points a line and ROWS_MAX rows a table.
const POINTS_MAX = 400;
const ROWS_MAX = 50;
const EVERY_MS = 5000;
const ANSWER_MS = 20000;
const $ = (id) => document.getElementById(id);
const plots = new Map();

async function ask(statement, parameters = {}) {
  const query = new URLSearchParams({ default_format: "JSONCompact" });
  for (const [name, value] of Object.entries(parameters)) query.set(`param_${name}`, value);
  const answer = await fetch(`/?${query}`, {
    method: "POST", body: statement, signal: AbortSignal.timeout(ANSWER_MS),
  });
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
  const { meta, data } = await answer.json();
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
const faint = (tint) => `${tint}33`;

// Where no cursor points, the legend tells the newest values.
const newest = (drawn) => { if (drawn.cursor.idx === null || drawn.cursor.idx === undefined) drawn.setLegend({ idx: drawn.data[0].length - 1 }, false); };

// x: numbers; lines: [{label, values, tint, dash, edge, band, aside}]; edge: drawn as the rim of a band only;
// band: index of the line that bounds it below; aside: told in the legend, not drawn.
function plot(place, x, lines, { time = false, unit = "" } = {}) {
  const box = $(place);
  const shape = JSON.stringify([lines.map((line) => [line.label, line.tint]), time, box.clientWidth]);
  const data = [x, ...lines.map((line) => line.values)];
  const old = plots.get(place);
  if (old && old.shape === shape) { old.plot.setData(data); newest(old.plot); return; }
  if (old) old.plot.destroy();
  box.replaceChildren();
  if (!x.length) { plots.delete(place); box.append(element("p", { className: "empty", textContent: "nothing yet" })); return; }
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--dim").trim();
  const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  const clock = (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(11, 16));
  const options = {
    width: box.clientWidth, height: 210, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time } }, hooks: { setCursor: [newest] },
    axes: [time ? { ...axis, values: clock } : axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => show(tick)) }],
    series: [
      time ? { label: "time", value: (_, seconds) => (seconds === null ? "-" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")) } : { label: "update" },
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

function table(place, columns, rows, cell = {}) {
  const box = $(place);
  if (!rows.length) { box.replaceChildren(element("p", { className: "empty", textContent: "nothing" })); return; }
  const numeric = (name) => rows.every((row) => row[name] === null || typeof row[name] === "number");
  const head = element("tr", {}, ...columns.map((name) => element("th", { textContent: name, className: numeric(name) ? "number" : "" })));
  const body = rows.map((row) => element("tr", {}, ...columns.map((name) => {
    const made = element("td", { className: numeric(name) ? "number" : name === "what" ? "long" : "" });
    made.append(cell[name] ? cell[name](row) : typeof row[name] === "number" ? show(row[name]) : row[name] ?? "-");
    return made;
  })));
  box.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
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
const SURVIVORS = `(SELECT ordinal, max(epoch) AS epoch, toUnixTimestamp64Milli(max(ts)) / 1000 AS at
  FROM learning_by_step WHERE run_id = {run:String} GROUP BY ordinal)`;

async function reward(asked) {
  const rows = await ask(`
    SELECT intDiv(r.ordinal, {per:UInt32}) * {per:UInt32} AS x, r.environment AS environment,
      sum(r.mean * r.n) / sum(r.n) AS mean, sqrt(sum(r.deviation * r.deviation * r.n) / sum(r.n)) AS spread
    FROM reward_by_step AS r JOIN ${SURVIVORS} AS s ON r.ordinal = s.ordinal AND r.epoch = s.epoch
    WHERE r.run_id = {run:String} AND s.at >= {since:Float64} GROUP BY x, environment ORDER BY x`, asked);
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
  plot("reward", x, lines);
}

async function staleness(asked) {
  const rows = await ask(`
    SELECT intDiv(l.ordinal, {per:UInt32}) * {per:UInt32} AS x,
      max(steps_p50) AS l50, max(steps_p95) AS l95, max(steps_p99) AS l99,
      max(age_s_p50) AS a50, max(age_s_p95) AS a95, max(age_s_p99) AS a99, sum(l.n) AS n
    FROM policy_lag_by_step AS l JOIN ${SURVIVORS} AS s ON l.ordinal = s.ordinal AND l.epoch = s.epoch
    WHERE l.run_id = {run:String} AND s.at >= {since:Float64} GROUP BY x ORDER BY x`, asked);
  const x = rows.map((row) => number(row.x));
  const lines = (kind) => [
    ...["50", "95", "99"].map((part, at) => ({ label: `p${part}`, values: rows.map((row) => number(row[kind + part])), tint: colour(at) })),
    { label: "n", values: rows.map((row) => number(row.n)), aside: true },
  ];
  plot("lag", x, lines("l"), { unit: "updates" });
  plot("age", x, lines("a"), { unit: "s" });
}

async function throughput(asked) {
  const [rows, whole] = await Promise.all([
    ask(`SELECT intDiv(toUnixTimestamp(t), 60 * {perminute:UInt32}) * 60 * {perminute:UInt32} AS x,
        avg(raw_tokens_per_s) AS raw, avg(effective_tokens_per_s) AS effective
      FROM throughput_by_minute WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64} - 60
      GROUP BY x ORDER BY x`, asked),
    ask("SELECT * FROM throughput WHERE run_id = {run:String}", asked),
  ]);
  const x = rows.map((row) => number(row.x));
  const bound = number(whole[0]?.bound_tokens_per_s ?? null);
  plot("throughput", x, [
    { label: "sampled", values: rows.map((row) => number(row.raw)), tint: colour(0) },
    { label: "trained", values: rows.map((row) => number(row.effective)), tint: colour(2) },
    { label: `bound (${whole[0]?.bottleneck ?? "-"})`, values: x.map(() => bound), tint: colour(5), dash: [6, 5] },
  ], { time: true, unit: "tokens/s" });
  return whole[0];
}

async function accounts(asked) {
  const rows = await ask("SELECT outcome, reason, n FROM trajectory_accounts WHERE run_id = {run:String} ORDER BY n DESC", asked);
  const tints = { trained: 2, pending: 0, evaluated: 3, dropped: 1, abandoned: 4 };
  bars("accounts", rows.map((row) => ({ label: row.reason && row.reason !== "none" ? `${row.outcome}: ${row.reason}` : row.outcome, value: number(row.n), tint: tints[row.outcome] })), "");
  const sum = (outcome) => rows.filter((row) => row.outcome === outcome).reduce((total, row) => total + number(row.n), 0);
  return { trained: sum("trained"), pending: sum("pending"), dropped: sum("dropped"), abandoned: sum("abandoned") };
}

async function waits(asked) {
  const rows = await ask("SELECT kind, cause, spent_s FROM wait_totals WHERE run_id = {run:String} ORDER BY kind = 'wait' DESC, spent_s DESC LIMIT 14", asked);
  bars("waits", rows.map((row) => ({ label: row.kind === "wait" ? `waits: ${row.cause}` : row.cause, value: number(row.spent_s), tint: row.kind === "wait" ? 1 : 0 })), " s");
}

async function quantities(asked) {
  const rows = await ask(`
    SELECT m.quantity AS quantity, any(c.unit) AS unit, quantilesTDigestMerge(0.5, 0.95, 0.99)(m.q) AS p, max(m.mx) AS most, sum(m.n) AS n
    FROM (
      SELECT quantity, q, mx, n FROM quantity_1h WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64} - 60
      UNION ALL SELECT quantity, q, mx, n FROM quantity_1m
      WHERE run_id = {run:String} AND toUnixTimestamp(t) >= {since:Float64} - 60 AND toUnixTimestamp(toStartOfHour(t)) < {since:Float64} - 60
    ) AS m LEFT JOIN quantity_catalogue AS c ON m.quantity = c.quantity
    GROUP BY quantity ORDER BY quantity`, asked);
  table("quantities", ["quantity", "unit", "p50", "p95", "p99", "max", "n"], rows.map((row) => ({
    quantity: row.quantity, unit: row.unit, p50: number(row.p[0]), p95: number(row.p[1]), p99: number(row.p[2]), max: number(row.most), n: number(row.n),
  })));
}

async function workers(asked) {
  const rows = await ask(`
    SELECT w.worker AS worker, w.role AS role, w.status AS status, w.starts AS starts, toString(w.seen_at) AS seen,
      if(v.worker = '', '', concat(toString(v.epoch), '/', toString(v.number))) AS version, if(v.worker = '', NULL, v.behind_updates) AS behind
    FROM workers_now AS w LEFT JOIN versions_served AS v ON w.worker = v.worker AND w.run_id = v.run_id
    WHERE w.run_id = {run:String} ORDER BY role, worker LIMIT ${ROWS_MAX}`, asked);
  table("workers", ["worker", "role", "status", "version", "behind", "starts", "seen"], rows.map((row) => ({
    ...row, starts: number(row.starts), behind: row.behind === null ? null : number(row.behind), version: row.version || "-", seen: row.seen.slice(0, 19),
  })));
}

async function alarms(asked) {
  const [letters, doubts, refused] = await Promise.all([
    ask(`SELECT origin_topic, consumer, error_class, example, n, toString(last_at) AS at FROM dead_letters_by_error WHERE run_id = {run:String} ORDER BY last_at DESC LIMIT ${ROWS_MAX}`, asked),
    ask(`SELECT doubt, worker, n FROM doubtful_rows WHERE run_id = {run:String} LIMIT ${ROWS_MAX}`, asked),
    ask("SELECT kind, worker_id, detail, toString(ts) AS at FROM refreshes WHERE run_id = {run:String} AND kind = 'failed' ORDER BY ts DESC LIMIT 10", asked),
  ]);
  table("alarms", ["alarm", "where", "n", "what", "last"], [
    ...letters.map((row) => ({ alarm: "dead letter", where: `${row.origin_topic}, ${row.consumer}`, n: number(row.n), what: `${row.error_class}: ${row.example}`, last: row.at.slice(0, 19) })),
    ...refused.map((row) => ({ alarm: "refresh failed", where: row.worker_id, n: 1, what: row.detail, last: row.at.slice(0, 19) })),
    ...doubts.map((row) => ({ alarm: "doubtful rows", where: row.worker, n: number(row.n), what: row.doubt, last: "-" })),
  ], { alarm: (row) => element("span", { className: "alarm", textContent: row.alarm }) });
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

function spans(told) {
  const versions = [];
  const box = element("div", { className: "tokens" });
  let before = "";
  for (const commit of told.commits) {
    if (!commit.token_ids.length) continue;
    // One heading for all commits of a turn.
    const turn = [commit.kind, commit.turn, commit.attempt, commit.branch].join();
    if (turn !== before) box.append(element("div", { className: "hint", textContent: `${commit.kind}, turn ${commit.turn}, attempt ${commit.attempt}, offset ${commit.offset}, ${new Date(commit.timestamp_ms).toISOString().slice(11, 23)}` }));
    before = turn;
    commit.token_ids.forEach((token, at) => {
      const index = commit.start + at;
      const version = commit.versions.find((one) => one.start <= index && index < one.end)?.version;
      if (version && !versions.includes(version)) versions.push(version);
      const parts = [version ? `v${versions.indexOf(version) % 6}` : "", commit.stands[at] === "main" ? "" : "old"];
      const logprob = commit.logprobs[at];
      const title = [`token ${token}`, version && `version ${version}`, logprob !== undefined && commit.kind === "action" && `log-prob ${show(logprob)}`, commit.stands[at]];
      box.append(element("span", { className: parts.join(" "), title: title.filter(Boolean).join(", "), textContent: commit.text?.[at] ?? `${token} ` }));
    });
  }
  const legend = element("p", { className: "hint tokens" }, "sampled by: ", ...versions.flatMap((one, at) => [element("span", { className: `v${at % 6}`, textContent: one }), " "]));
  return [legend, box];
}

async function story(episode) {
  const body = $("story-body");
  body.replaceChildren(element("p", { textContent: "reading the topics" }));
  $("story").showModal();
  try {
    const answer = await fetch(`story/${encodeURIComponent(episode)}`, { signal: AbortSignal.timeout(3 * ANSWER_MS) });
    if (!answer.ok) throw new Error(await answer.text());
    const told = await answer.json();
    const facts = [["attempts", told.attempts], ["ended by", told.stop_cause ?? told.abandoned ?? "not yet"], ["verdict", told.verdict?.code], ["reward", told.verdict?.reward],
      ["gate", told.decision?.outcome], ["trained by", told.step ? `${told.step.version} (update ${told.step.ordinal})` : "none"]];
    body.replaceChildren(
      element("h2", { textContent: told.episode_id }),
      element("p", {}, facts.map(([name, value]) => `${name}: ${value ?? "-"}`).join(" · ")),
      ...spans(told),
      element("h2", { textContent: "Tool calls" }), element("div", { id: "story-tools", className: "scroll" }),
      element("h2", { textContent: "Timeline" }), element("div", { id: "story-times", className: "scroll" }),
    );
    table("story-tools", ["tool", "arguments", "output", "exit"], told.tool_calls.map((call) => ({ tool: call.tool, arguments: call.arguments, output: call.output, exit: call.unknown ? "unknown" : call.exit_class })));
    const first = told.timeline[0]?.timestamp_ms ?? 0;
    table("story-times", ["s", "topic", "offset", "kind", "what"], told.timeline.map((one) => ({ s: (one.timestamp_ms - first) / 1000, topic: one.topic, offset: one.offset, kind: one.kind, what: one.what })));
  } catch (error) {
    body.replaceChildren(element("p", { className: "alarm", textContent: `no story: ${error.message}` }));
  }
}

async function runs() {
  const rows = await ask("SELECT run_id FROM run_wall ORDER BY began_ms DESC LIMIT 100");
  const known = rows.map((row) => row.run_id);
  const select = $("run");
  if (known.join() === [...select.options].map((one) => one.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...known.map((one) => element("option", { value: one, textContent: one })));
  if (known.includes(chosen)) select.value = chosen;
}

function figures(facts) {
  $("figures").replaceChildren(...facts.map(([name, value]) => element("div", { className: "figure" }, element("b", { textContent: value }), element("span", { textContent: name }))));
}

let busy = false;
async function renew() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    await runs();
    const run = $("run").value;
    if (!run) { $("state").textContent = "no run yet"; return; }
    const [extent] = await ask("SELECT max(ordinal) AS last, count() AS updates, argMax(reward_mean, ts) AS reward, dateDiff('minute', min(ts), max(ts)) AS minutes, toUnixTimestamp64Milli(max(ts)) / 1000 AS newest FROM learning_by_step WHERE run_id = {run:String}", { run });
    const range = Number($("range").value);
    const since = range && number(extent.newest) ? number(extent.newest) - range : 0;
    const per = Math.max(1, Math.ceil(number(extent.last) / POINTS_MAX));
    const perminute = Math.max(1, Math.ceil(number(extent.minutes) / POINTS_MAX));
    const asked = { run, since, per, perminute };
    const [whole, sums] = await Promise.all([throughput(asked), accounts(asked), reward(asked), staleness(asked), waits(asked), quantities(asked), workers(asked), alarms(asked), episodes(asked)]);
    figures([
      ["updates", show(number(extent.last))],
      ["reward, newest update", number(extent.updates) ? show(number(extent.reward)) : "-"],
      ["episodes trained", show(sums.trained)], ["pending", show(sums.pending)], ["dropped", show(sums.dropped)], ["abandoned", show(sums.abandoned)],
      ["sampled tokens/s", show(number(whole?.raw_tokens_per_s ?? null))], ["trained tokens/s", show(number(whole?.effective_tokens_per_s ?? null))],
      ["wall clock, s", show(number(whole?.wall_s ?? null))],
    ]);
    $("state").className = "";
    $("state").textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
  } catch (error) {
    $("state").className = "failed";
    $("state").textContent = `no answer: ${error.message}`;
  } finally {
    busy = false;
  }
}

function redraw() {
  for (const one of plots.values()) one.plot.destroy();
  plots.clear();
  renew();
}
$("run").addEventListener("change", redraw);
$("range").addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", () => { clearTimeout(window.resized); window.resized = setTimeout(redraw, 300); });
// The address names the episode whose story is open, so that it can be passed on.
function follow() {
  if (location.hash.startsWith("#episode=")) story(decodeURIComponent(location.hash.slice(9)));
}
addEventListener("hashchange", follow);
$("story").addEventListener("close", () => history.replaceState(null, "", location.pathname));
setInterval(renew, EVERY_MS);
renew();
follow();
