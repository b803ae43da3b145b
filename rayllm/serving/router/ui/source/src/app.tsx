import { useEffect, useState } from "preact/hooks";

import { ApiError, listModels, readiness, type Model, type Readiness } from "./api/client";
import { key, onKeyChange } from "./api/session";
import { Chat } from "./chat/chat";
import { Icon, Mark, type IconName } from "./parts/icon";
import { Notice, Prose, explained } from "./parts/notice";
import { usePolled } from "./parts/poll";
import { KeyDialog } from "./views/key-dialog";
import { Keys } from "./views/keys";
import { Models } from "./views/models";
import { Requests } from "./views/requests";
import { Usage } from "./views/usage";

const VIEWS: readonly { id: string; label: string; icon: IconName }[] = [
  { id: "chat", label: "Chat", icon: "chat" },
  { id: "models", label: "Models", icon: "models" },
  { id: "requests", label: "Requests", icon: "requests" },
  { id: "usage", label: "Usage", icon: "usage" },
  { id: "keys", label: "Keys", icon: "key" },
];

/** What the page knows about the service. */
export interface Service {
  models: Model[];
  readiness: Readiness;
}

// Milliseconds.
const SOON = 2000;
const LATER = 10_000;

async function load(signal: AbortSignal): Promise<Service> {
  const [models, ready] = await Promise.all([listModels(signal), readiness(signal)]);
  return { models, readiness: ready };
}

/** Whether nothing is expected to change by itself. */
function isSettled(service: Service): boolean {
  return service.readiness.ready && service.models.every((model) => model.endpoints !== null);
}

function viewOf(hash: string): string {
  const [id = ""] = hash.replace(/^#/, "").split("/");
  return VIEWS.some((view) => view.id === id) ? id : "chat";
}

export function App() {
  const [hash, setHash] = useState(location.hash);
  const [asksKey, setAsksKey] = useState(false);
  const [hasKey, setHasKey] = useState(Boolean(key()));
  const service = usePolled(load, (value) => (value && isSettled(value) ? LATER : SOON));
  const view = viewOf(hash);
  const detail = hash.split("/").slice(1).join("/");
  const isRefused = service.error instanceof ApiError && service.error.status === 401;

  useEffect(() => {
    const onHash = () => setHash(location.hash);
    window.addEventListener("hashchange", onHash);
    return () => window.removeEventListener("hashchange", onHash);
  }, []);
  useEffect(() => onKeyChange(() => setHasKey(Boolean(key()))), []);
  useEffect(() => {
    // A page without a key can do nothing yet; one with a key says what is wrong with it.
    if (isRefused && !key()) setAsksKey(true);
  }, [isRefused]);
  useEffect(() => {
    document.title = `${VIEWS.find((each) => each.id === view)?.label} – RayLLM`;
  }, [view]);

  const askKey = () => setAsksKey(true);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <nav class="side" aria-label="Views">
        <div class="brand">
          <Mark />
          <span>RayLLM</span>
        </div>
        <ul>
          {VIEWS.map(({ id, label, icon }) => (
            <li key={id}>
              <a href={`#${id}`} aria-current={id === view ? "page" : undefined}>
                <Icon name={icon} />
                <span>{label}</span>
              </a>
            </li>
          ))}
        </ul>
        <div class="side-end">
          <Health service={service.value} error={service.error} />
          <button type="button" class="quiet" onClick={askKey}>
            <Icon name="key" />
            <span>{hasKey ? "API key set" : "API key"}</span>
          </button>
        </div>
      </nav>
      <main id="content" tabIndex={view === "chat" ? -1 : 0}>
        <Trouble service={service.value} error={service.error} askKey={askKey} />
        <Chat isShown={view === "chat"} service={service.value} askKey={askKey} hasKey={hasKey} />
        {view === "models" && <Models service={service.value} />}
        {view === "requests" && <Requests detail={detail} />}
        {view === "usage" && <Usage />}
        {view === "keys" && <Keys />}
      </main>
      {asksKey && <KeyDialog isRefused={isRefused && hasKey} onClose={() => setAsksKey(false)} />}
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

/** Whether models can answer, in a word. */
function Health({ service, error }: { service: Service | null; error: unknown }) {
  const [kind, text] = error
    ? (["bad", error instanceof ApiError && error.status === 401 ? "No valid key" : "Not reachable"] as const)
    : !service
      ? (["wait", "Connecting"] as const)
      : service.readiness.ready
        ? (["good", "Ready"] as const)
        : (["wait", "Starting"] as const);
  return (
    <p class="health">
      <span class={`dot ${kind}`} aria-hidden="true" />
      <span>{text}</span>
    </p>
  );
}

function Trouble({ service, error, askKey }: { service: Service | null; error: unknown; askKey: () => void }) {
  if (error instanceof ApiError && error.status === 401) {
    return (
      <Notice
        kind="error"
        action={
          <button type="button" onClick={askKey}>
            Enter a key
          </button>
        }
      >
        <Prose text={key() ? explained(error) : "This service asks for an API key."} />
      </Notice>
    );
  }
  if (error) return <Notice kind="error"><Prose text={`${explained(error)} The page goes on trying.`} /></Notice>;
  if (service && !service.readiness.ready) {
    const starting = Object.entries(service.readiness.phases).filter(([, phase]) => phase !== "running" && phase !== "scaled to zero");
    return (
      <Notice kind="wait">
        {starting.map(([model, phase]) => `${model}: ${described(phase)}`).join("; ") || service.readiness.message}
      </Notice>
    );
  }
  return null;
}

const PHASES: Record<string, string> = {
  fetch: "its weights are being fetched",
  load: "its weights are being loaded",
  warm_up: "it is warming up",
  waiting: "it is waiting to be placed",
  "not deployed": "it is not deployed",
};

export function described(phase: string): string {
  return PHASES[phase] ?? phase;
}
