import { useRef } from "preact/hooks";

import { metricsPage, type Model } from "../api/client";
import { Metrics } from "../api/metrics";
import { described, type Service } from "../app";
import { count, percent, rate } from "../parts/format";
import { Notice, Prose, explained } from "../parts/notice";
import { usePolled } from "../parts/poll";

const SERIES = [
  "rayllm_replicas",
  "rayllm_requests_waiting",
  "rayllm_requests_in_hand",
  "rayllm_resident_adapters",
  "vllm:num_requests_running",
  "vllm:num_requests_waiting",
  "vllm:kv_cache_usage_perc",
  "vllm:generation_tokens_total",
  "vllm:prompt_tokens_total",
] as const;
// Milliseconds between two looks, and how many are kept.
const PERIOD = 2000;
const KEPT = 60;

/** Tokens per second since the look before, by model and by replica; the newest is last. */
interface Look {
  at: number;
  metrics: Metrics;
  rates: Map<string, number>;
}

export function Models({ service }: { service: Service | null }) {
  const looks = useRef<Look[]>([]);
  const { value, error } = usePolled(
    async (signal) => {
      const metrics = new Metrics(await metricsPage(signal), SERIES);
      const now = performance.now();
      const before = looks.current.at(-1);
      looks.current = [...looks.current, { at: now, metrics, rates: ratesOf(metrics, before, now) }].slice(-KEPT);
      return looks.current;
    },
    () => PERIOD,
  );
  const bases = (service?.models ?? []).filter((model) => !model.parent && model.id in (service?.readiness.phases ?? {}));
  return (
    <section class="view" aria-labelledby="models-title">
      <h1 id="models-title">Models</h1>
      <p class="lead">What each model is doing now. Figures are of all replicas together, and two seconds old at most.</p>
      {error !== null && <Notice kind="error"><Prose text={`The figures are not up to date: ${explained(error)}`} /></Notice>}
      <ul class="cards">
        {bases.map((model) => (
          <Card key={model.id} model={model} names={namesOf(model, service?.models ?? [])} phase={service?.readiness.phases[model.id] ?? ""} looks={value ?? []} />
        ))}
      </ul>
      {service && !bases.length && <p class="empty">Your key may use no model of this service.</p>}
    </section>
  );
}

function ratesOf(metrics: Metrics, before: Look | undefined, now: number): Map<string, number> {
  const rates = new Map<string, number>();
  if (!before) return rates;
  for (const { labels, value } of metrics.of("vllm:generation_tokens_total")) {
    const { model = "", replica = "" } = labels;
    const old = before.metrics.sum("vllm:generation_tokens_total", { model, replica });
    if (old === null) continue;
    // A replica that has started anew counts from zero.
    const grown = Math.max(0, value - old) / ((now - before.at) / 1000);
    rates.set(`${model}\n${replica}`, (rates.get(`${model}\n${replica}`) ?? 0) + grown);
    rates.set(model, (rates.get(model) ?? 0) + grown);
  }
  return rates;
}

interface Names {
  aliases: string[];
  adapters: string[];
}

function namesOf(model: Model, all: Model[]): Names {
  const adapters = all.filter((each) => each.parent === model.id).map((each) => each.id.replace(`${model.id}:`, ""));
  return { aliases: [], adapters };
}

function Card({ model, names, phase, looks }: { model: Model; names: Names; phase: string; looks: Look[] }) {
  const last = looks.at(-1);
  const labels = { model: model.id };
  const metrics = last?.metrics;
  const figure = (name: (typeof SERIES)[number], more = {}) => metrics?.sum(name, { ...labels, ...more }) ?? null;
  const open = figure("rayllm_replicas", { state: "open" });
  const kv = metrics?.max("vllm:kv_cache_usage_perc", labels) ?? null;
  const speeds = looks.map((look) => look.rates.get(model.id) ?? null);
  const isRunning = phase === "running";
  const replicas = [...new Set((metrics?.of("vllm:num_requests_running", labels) ?? []).map((each) => each.labels.replica ?? ""))].sort();
  return (
    <li class="card">
      <header>
        <h2>{model.id}</h2>
        <span class={`badge ${isRunning ? "good" : phase === "scaled to zero" ? "" : "wait"}`}>{phase || "unknown"}</span>
      </header>
      {!isRunning && phase && phase !== "scaled to zero" && <p class="remark">It cannot answer yet: {described(phase)}.</p>}
      <dl class="figures">
        <Figure label="Tokens/s" value={rate(speeds.at(-1) ?? (last ? 0 : null))} />
        <Figure label="Running" value={count(figure("vllm:num_requests_running"))} />
        <Figure label="Waiting" value={count(sumOf(figure("rayllm_requests_waiting"), figure("vllm:num_requests_waiting")))} />
        <Figure label="Replicas" value={count(open)} />
        <Figure label="Adapters loaded" value={count(figure("rayllm_resident_adapters"))} />
        <Figure label="Context" value={count(model.max_model_len)} />
      </dl>
      <div class="gauges">
        <div>
          <p class="gauge-label">
            <span>KV cache</span>
            <span>{percent(kv)}</span>
          </p>
          <meter min={0} max={1} high={0.9} optimum={0} value={kv ?? 0} aria-label={`KV cache of ${model.id}`}>
            {percent(kv)}
          </meter>
        </div>
        <Sparkline values={speeds} label={`Tokens per second of ${model.id} in the last ${Math.round((looks.length * PERIOD) / 1000)} seconds`} />
      </div>
      {replicas.length > 1 && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Replicas of ${model.id}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">Replica</th>
                <th scope="col" class="right">Running</th>
                <th scope="col" class="right">Waiting</th>
                <th scope="col" class="right">Tokens/s</th>
                <th scope="col" class="right">KV cache</th>
              </tr>
            </thead>
            <tbody>
              {replicas.map((replica) => (
                <tr key={replica}>
                  <th scope="row">
                    <code>{replica}</code>
                  </th>
                  <td class="right">{count(figure("vllm:num_requests_running", { replica }))}</td>
                  <td class="right">{count(figure("vllm:num_requests_waiting", { replica }))}</td>
                  <td class="right">{rate(last?.rates.get(`${model.id}\n${replica}`) ?? 0)}</td>
                  <td class="right">{percent(metrics?.max("vllm:kv_cache_usage_perc", { ...labels, replica }) ?? null)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {names.adapters.length > 0 && (
        <div class="chips">
          <h3>Adapters</h3>
          <ul>
            {names.adapters.slice(0, 40).map((name) => (
              <li key={name}>{name}</li>
            ))}
            {names.adapters.length > 40 && <li>and {count(names.adapters.length - 40)} more</li>}
          </ul>
        </div>
      )}
    </li>
  );
}

function sumOf(...values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((total, value) => total + value, 0) : null;
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

const WIDTH = 240;
const HEIGHT = 44;

function Sparkline({ values, label }: { values: (number | null)[]; label: string }) {
  const most = Math.max(1, ...values.map((value) => value ?? 0));
  const step = WIDTH / (KEPT - 1);
  const start = KEPT - values.length;
  const points = values
    .map((value, index) => (value === null ? null : `${((start + index) * step).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`))
    .filter((point) => point !== null);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <line x1="0" y1={HEIGHT - 1} x2={WIDTH} y2={HEIGHT - 1} />
      {points.length > 1 && <polyline points={points.join(" ")} />}
    </svg>
  );
}
