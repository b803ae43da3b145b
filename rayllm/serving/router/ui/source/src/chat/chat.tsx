import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Service } from "../app";
import { chats, sees, type Model } from "../api/client";
import { recall, remember } from "../api/session";
import { Icon } from "../parts/icon";
import { Composer } from "./composer";
import { Conversation, requestOf, type UserTurn } from "./conversation";
import { saveConversations, savedConversations } from "./history";
import { Pane } from "./pane";
import { DEFAULTS, fieldsOf, type Settings } from "./settings";
import { SettingsPanel } from "./settings-panel";
import { SnippetDialog } from "./snippet-dialog";

const NARROW = "(max-width: 1000px)";

/** A chat with a model, or with two side by side. It stays as it is while another view is shown. */
export function Chat({ isShown, service, askKey, hasKey }: { isShown: boolean; service: Service | null; askKey: () => void; hasKey: boolean }) {
  const [settings, setSettings] = useState<Settings>(() => recall("settings", DEFAULTS));
  const [panes, setPanes] = useState(savedConversations);
  const [hasPanel, setHasPanel] = useState(() => !matchMedia(NARROW).matches);
  const [snippet, setSnippet] = useState<Record<string, unknown> | null>(null);
  const [draft, setDraft] = useState<UserTurn>({ role: "user", text: "", pictures: [] });
  const [said, setSaid] = useState("");
  useChanges(panes);
  useSaving(panes);

  const models = useMemo(() => (service?.models ?? []).filter(chats), [service]);
  const { fields, faults } = useMemo(() => fieldsOf(settings), [settings]);
  const hasFaults = Object.keys(faults).length > 0;
  const isBusy = panes.some((pane) => pane.isBusy);
  const canSee = panes.every((pane) => sees(models.find((model) => model.id === pane.model)));
  const isEmpty = panes.every((pane) => pane.turns.length === 0);

  useLayoutEffect(() => remember("settings", settings), [settings]);
  useEffect(() => {
    // Names that are gone, or were never chosen.
    panes.forEach((pane, index) => {
      if (models.length && !models.some((model) => model.id === pane.model)) {
        pane.model = (models[Math.min(index, models.length - 1)] as Model).id;
        pane.changed();
      }
    });
  }, [models, panes]);

  const choose = (pane: Conversation, model: string) => {
    pane.model = model;
    pane.changed();
    if (pane === panes[0]) remember("model", { id: model });
  };
  const compare = () => {
    const [first] = panes;
    if (!first) return;
    if (panes.length > 1) {
      panes[1]?.stop();
      setPanes([first]);
      return;
    }
    const other = models.find((model) => model.id !== first.model && model.parent === first.model) ?? models.find((model) => model.id !== first.model);
    const second = new Conversation(other?.id ?? first.model);
    setPanes([first, second]);
  };
  const announce = async (work: Promise<void>[]) => {
    setSaid("The answer is being written.");
    await Promise.all(work);
    setSaid(panes.map((pane) => outcome(pane)).join(" "));
  };
  const send = (turn: UserTurn) => {
    setDraft({ role: "user", text: "", pictures: [] });
    void announce(panes.map((pane) => pane.ask({ ...turn }, settings.system, fields)));
  };
  const stop = () => panes.forEach((pane) => pane.stop());
  const clear = () => {
    panes.forEach((pane) => pane.clear());
    setSaid("");
    document.getElementById("composer")?.focus();
  };
  const showCode = () => {
    const [pane] = panes;
    if (!pane) return;
    // The request that has been sent last, or the one that would be sent now.
    const turns = draft.text || draft.pictures.length ? [...pane.turns, draft] : pane.lastAnswer ? pane.turns.slice(0, -1) : pane.turns;
    const asked = turns.length ? turns : [{ role: "user" as const, text: "What is the capital of France?", pictures: [] }];
    setSnippet(requestOf(pane.model, asked, settings.system, fields));
  };

  return (
    <section class={`chat ${hasPanel ? "with-panel" : ""}`} hidden={!isShown} aria-label="Chat">
      <h1 class="off-screen">Chat</h1>
      <div class="chat-main">
        <header class={`bar ${panes.length > 1 ? "dense" : ""}`}>
          <div class="chosen">
            {panes.map((pane, index) => (
              <ModelSelect
                key={index}
                label={panes.length > 1 ? `Model ${index + 1}` : "Model"}
                models={models}
                service={service}
                value={pane.model}
                onChange={(model) => choose(pane, model)}
              />
            ))}
          </div>
          <div class="tools">
            <button type="button" class="quiet" onClick={compare} aria-pressed={panes.length > 1} disabled={isBusy && panes.length === 1}>
              <Icon name="compare" />
              <span>Compare</span>
            </button>
            <button type="button" class="quiet" onClick={showCode} aria-label="Show as code">
              <Icon name="code" />
              <span>Code</span>
            </button>
            <button type="button" class="quiet" onClick={clear} disabled={isEmpty}>
              <Icon name="plus" />
              <span>New chat</span>
            </button>
            <button type="button" class="quiet" onClick={() => setHasPanel(!hasPanel)} aria-expanded={hasPanel} aria-controls="settings">
              <Icon name="settings" />
              <span>Settings</span>
              {hasFaults && <span class="dot bad" role="img" aria-label="with an error" />}
            </button>
          </div>
        </header>
        <div class={`panes ${panes.length > 1 ? "two" : ""}`}>
          {panes.map((pane, index) => (
            <Pane
              key={index}
              pane={pane}
              label={panes.length > 1 ? `Conversation with ${pane.model}` : "Conversation"}
              isStructured={"response_format" in fields}
              onRegenerate={() => void announce([pane.regenerate(settings.system, fields)])}
              onResults={() => void announce([pane.goOn(settings.system, fields)])}
              onAsk={(text) => send({ role: "user", text, pictures: [] })}
              canAsk={!hasFaults && models.length > 0}
              askKey={askKey}
            />
          ))}
        </div>
        <Composer
          draft={draft}
          setDraft={setDraft}
          onSend={send}
          onStop={stop}
          isBusy={isBusy}
          canSee={canSee}
          fault={hasFaults ? "A setting cannot be sent; the settings say what is wrong." : models.length ? "" : service ? "No model of this service takes part in chats." : ""}
          canSend={!hasFaults && models.length > 0}
        />
      </div>
      <p class="off-screen" role="status" aria-live="polite">
        {said}
      </p>
      {hasPanel && <SettingsPanel settings={settings} faults={faults} onChange={setSettings} onClose={() => setHasPanel(false)} />}
      {snippet && <SnippetDialog body={snippet} hasKey={hasKey} onClose={() => setSnippet(null)} />}
    </section>
  );
}

function useChanges(panes: readonly Conversation[]): void {
  const [, setCount] = useState(0);
  const latest = useRef(panes);
  latest.current = panes;
  useEffect(() => {
    const stops = panes.map((pane) => pane.onChange(() => setCount((count) => count + 1)));
    return () => stops.forEach((stop) => stop());
  }, [panes]);
}

/** Save the conversations whenever the page may be about to go. */
function useSaving(panes: readonly Conversation[]): void {
  useEffect(() => {
    // The browser is about to cut the answer off, which would look as if the service had gone away.
    const stop = () => panes.forEach((pane) => pane.stop());
    const save = () => saveConversations(panes);
    const onHidden = () => document.hidden && save();
    window.addEventListener("beforeunload", stop);
    window.addEventListener("pagehide", save);
    document.addEventListener("visibilitychange", onHidden);
    return () => {
      window.removeEventListener("beforeunload", stop);
      window.removeEventListener("pagehide", save);
      document.removeEventListener("visibilitychange", onHidden);
    };
  }, [panes]);
}

function outcome(pane: Conversation): string {
  const answer = pane.lastAnswer;
  switch (answer?.state) {
    case "done":
      return answer.calls.length ? `${answer.model} calls ${answer.calls.map((call) => call.name).join(", ")}.` : `The answer of ${answer.model} is complete.`;
    case "stopped":
      return `The answer of ${answer.model} was stopped.`;
    case "failed":
      return `The answer of ${answer.model} failed.`;
    default:
      return "";
  }
}

function ModelSelect({ label, models, service, value, onChange }: { label: string; models: Model[]; service: Service | null; value: string; onChange: (id: string) => void }) {
  const bases = models.filter((model) => !model.parent);
  const isRunning = (model: Model) => {
    const phase = service?.readiness.phases[model.parent ?? model.id];
    return !phase || phase === "running" || phase === "scaled to zero";
  };
  const option = (model: Model) => (
    <option key={model.id} value={model.id}>
      {model.id}
      {isRunning(model) ? "" : " (starting)"}
    </option>
  );
  return (
    <select class="model-select" aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)} disabled={!models.length}>
      {!models.length && <option value={value}>{service ? "No models" : "Connecting …"}</option>}
      {bases.map((base) => {
        const adapters = models.filter((model) => model.parent === base.id);
        return adapters.length ? (
          <optgroup key={base.id} label={base.id}>
            {[base, ...adapters].map(option)}
          </optgroup>
        ) : (
          option(base)
        );
      })}
    </select>
  );
}
