import { useState } from "preact/hooks";

import { ApiError, isRefusal, usage, type UsageRow } from "../api/client";
import { count } from "../parts/format";
import { Notice, Prose, explained } from "../parts/notice";
import { usePolled } from "../parts/poll";

const GROUPS = { key: "Key", model: "Model", adapter: "Adapter", day: "Day" } as const;
type Group = keyof typeof GROUPS;
const FIGURES = { requests: "Requests", prompt_tokens: "Prompt tokens", cached_tokens: "of them cached", completion_tokens: "Answer tokens" } as const;
const PERIOD = 30_000;
const DAY = 24 * 3600 * 1000;

function day(offset: number): string {
  return new Date(Date.now() + offset * DAY).toISOString().slice(0, 10);
}

export function Usage() {
  const [groups, setGroups] = useState<Group[]>(["key", "model"]);
  const [since, setSince] = useState(day(-30));
  const [until, setUntil] = useState(day(0));
  const asked = `${groups.join()} ${since} ${until}`;
  return (
    <section class="view" aria-labelledby="usage-title">
      <h1 id="usage-title">Usage</h1>
      <p class="lead">Requests and tokens by the service’s ledger. A key sees its own, an administrator those of all keys. Days are UTC.</p>
      <div class="filters">
        <fieldset>
          <legend>Group by</legend>
          {(Object.keys(GROUPS) as Group[]).map((group) => (
            <label key={group} class="check">
              <input
                type="checkbox"
                checked={groups.includes(group)}
                onChange={(event) => setGroups((Object.keys(GROUPS) as Group[]).filter((each) => (each === group ? event.currentTarget.checked : groups.includes(each))))}
              />
              {GROUPS[group]}
            </label>
          ))}
        </fieldset>
        <label class="field">
          <span>From</span>
          <input type="date" value={since} max={until} onInput={(event) => setSince(event.currentTarget.value)} />
        </label>
        <label class="field">
          <span>To</span>
          <input type="date" value={until} min={since} onInput={(event) => setUntil(event.currentTarget.value)} />
        </label>
      </div>
      <Table key={asked} groups={groups} since={since} until={until} />
    </section>
  );
}

function Table({ groups, since, until }: { groups: Group[]; since: string; until: string }) {
  const { value, error } = usePolled((signal) => usage(groups, since, until, signal), (found, failure) => (found || isRefusal(failure) ? PERIOD : 2000));
  if (error) {
    const isForbidden = error instanceof ApiError && error.status === 403;
    return (
      <Notice kind={isForbidden ? "info" : "error"}>
        <Prose text={explained(error) + (isForbidden ? " With `router.keys`, each key sees its own usage here." : "")} />
      </Notice>
    );
  }
  if (!value) return <Notice kind="wait">Reading the ledger.</Notice>;
  const figures = Object.keys(FIGURES) as (keyof typeof FIGURES)[];
  const total = (name: string) => value.data.reduce((sum, row) => sum + number(row, name), 0);
  if (!value.data.length) return <p class="empty">Nothing was used in these days.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of usage">
      <table class="wide">
        <thead>
          <tr>
            {groups.map((group) => (
              <th key={group} scope="col">
                {GROUPS[group]}
              </th>
            ))}
            {figures.map((name) => (
              <th key={name} scope="col" class="right">
                {FIGURES[name]}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {value.data.map((row, index) => (
            <tr key={index}>
              {groups.map((group) => (
                <td key={group}>{String(row[group] ?? "") || "–"}</td>
              ))}
              {figures.map((name) => (
                <td key={name} class="right">
                  {count(number(row, name))}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            {groups.length > 0 && (
              <th scope="row" colSpan={groups.length}>
                Total
              </th>
            )}
            {figures.map((name) => (
              <td key={name} class="right">
                {count(total(name))}
              </td>
            ))}
          </tr>
        </tfoot>
      </table>
    </div>
  );
}

function number(row: UsageRow, name: string): number {
  return Number(row[name] ?? 0);
}
