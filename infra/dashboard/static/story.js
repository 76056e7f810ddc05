"use strict";
// The story of one episode, as docs/audit.md gives its JSON: what became of it, its tokens by the
// version that sampled them, its tool calls, and every record in the order of time.

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

// A step that a restore took back trained nothing that lasts.
function trained({ step }) {
  if (!step) return "none";
  return `${step.version} (update ${step.ordinal}${step.survives ? "" : ", rolled back"})`;
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
      ["gate", told.decision?.reason ? `${told.decision.outcome} (${told.decision.reason})` : told.decision?.outcome], ["trained by", trained(told)]];
    body.replaceChildren(
      element("h2", { textContent: told.episode_id }),
      element("p", {}, facts.map(([name, value]) => `${name}: ${value ?? "-"}`).join(" · ")),
      ...spans(told),
      element("h2", { textContent: "Tool calls" }), element("div", { id: "story-tools", className: "scroll" }),
      element("h2", { textContent: "Timeline" }), element("div", { id: "story-times", className: "scroll" }),
    );
    table("story-tools", ["tool", "arguments", "output", "exit", "ms"], told.tool_calls.map((call) => ({ tool: call.tool, arguments: call.arguments, output: call.output, exit: call.unknown ? "unknown" : call.exit_class, ms: call.duration_us === null ? null : call.duration_us / 1000 })));
    const first = told.timeline[0]?.timestamp_ms ?? 0;
    table("story-times", ["s", "topic", "offset", "kind", "what"], told.timeline.map((one) => ({ s: (one.timestamp_ms - first) / 1000, topic: one.topic, offset: one.offset, kind: one.kind, what: one.what })));
  } catch (error) {
    body.replaceChildren(element("p", { className: "alarm", textContent: `no story: ${error.message}` }));
  }
}

// The address names the episode whose story is open, so that it can be passed on.
function follow() {
  if (location.hash.startsWith("#episode=")) story(decodeURIComponent(location.hash.slice(9)));
}
addEventListener("hashchange", follow);
$("story").addEventListener("close", () => history.replaceState(null, "", location.pathname));
follow();
