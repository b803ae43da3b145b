import { useId } from "preact/hooks";

import { Icon } from "../parts/icon";
import { Prose } from "../parts/notice";
import { DEFAULTS, MORE_NUMBERS, NUMBERS, type Faults, type Numeric, type Settings } from "./settings";

interface Props {
  settings: Settings;
  faults: Faults;
  onChange: (settings: Settings) => void;
  onClose: () => void;
}

const TOOL = `[{"type": "function", "function": {
  "name": "get_current_temperature",
  "description": "Get the current temperature.",
  "parameters": {"type": "object", "properties": {
    "location": {"type": "string"}}}}}]`;
const SCHEMA = `{"type": "object", "properties": {
  "capital": {"type": "string"}},
  "required": ["capital"]}`;

export function SettingsPanel({ settings, faults, onChange, onClose }: Props) {
  const set = (name: keyof Settings, value: string) => onChange({ ...settings, [name]: value });
  const isDefault = (Object.keys(DEFAULTS) as (keyof Settings)[]).every((name) => settings[name] === DEFAULTS[name]);
  const area = (name: keyof Settings, label: string, placeholder: string, rows: number, help = "") => (
    <Area label={label} help={help} placeholder={placeholder} rows={rows} value={settings[name]} fault={faults[name]} isCode={name !== "system" && name !== "stop"} onChange={(value) => set(name, value)} />
  );
  const number = (each: Numeric) => (
    <NumberField key={each.name} number={each} value={settings[each.name]} fault={faults[each.name]} onChange={(value) => set(each.name, value)} />
  );
  return (
    <aside id="settings" class="panel" aria-label="Settings">
      <header>
        <h2>Settings</h2>
        <button type="button" class="quiet small" onClick={() => onChange(DEFAULTS)} disabled={isDefault}>
          Reset
        </button>
        <button type="button" class="quiet square" aria-label="Close the settings" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      <div class="panel-body">
        {area("system", "System prompt", "The model’s default", 3)}
        <div class="numbers">{NUMBERS.map(number)}</div>
        <Group title="More sampling" isOpen={[...MORE_NUMBERS.map((each) => each.name), "stop" as const].some((name) => settings[name])}>
          <div class="numbers">{MORE_NUMBERS.map(number)}</div>
          {area("stop", "Stop at", "One text on each line", 2)}
        </Group>
        <Group title="Tools" isOpen={Boolean(settings.tools)}>
          {area("tools", "Definitions (JSON)", TOOL, 6, "As in the API’s `tools`. Calls are shown; you say what they return.")}
          <label class="field">
            <span>Choice</span>
            <select value={settings.toolChoice} onChange={(event) => set("toolChoice", event.currentTarget.value)}>
              <option value="auto">auto: the model decides</option>
              <option value="required">required: it calls one at least</option>
              <option value="none">none: it calls none</option>
            </select>
          </label>
        </Group>
        <Group title="Structured output" isOpen={Boolean(settings.schema)}>
          {area("schema", "JSON schema", SCHEMA, 5, "Every answer is JSON of this schema.")}
        </Group>
        <Group title="Other fields" isOpen={Boolean(settings.extra)}>
          {area("extra", "Request fields (JSON)", '{"min_tokens": 8}', 3, "Sent as they are; they replace the settings above.")}
        </Group>
      </div>
    </aside>
  );
}

function Group({ title, isOpen, children }: { title: string; isOpen: boolean; children: preact.ComponentChildren }) {
  return (
    <details class="group" open={isOpen || undefined}>
      <summary>{title}</summary>
      {children}
    </details>
  );
}

interface AreaProps {
  label: string;
  help: string;
  placeholder: string;
  rows: number;
  value: string;
  fault: string | undefined;
  isCode: boolean;
  onChange: (value: string) => void;
}

function Area({ label, help, placeholder, rows, value, fault, isCode, onChange }: AreaProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        class={isCode ? "code" : ""}
        rows={rows}
        dir="auto"
        spellcheck={!isCode}
        placeholder={placeholder}
        value={value}
        aria-invalid={Boolean(fault)}
        aria-describedby={`${id}-note`}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      <p id={`${id}-note`} class={fault ? "fault" : "help"}>
        <Prose text={fault ?? help} />
      </p>
    </div>
  );
}

function NumberField({ number, value, fault, onChange }: { number: Numeric; value: string; fault: string | undefined; onChange: (value: string) => void }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{number.label}</label>
      <input
        id={id}
        inputMode="decimal"
        autocomplete="off"
        placeholder={number.hint}
        value={value}
        aria-invalid={Boolean(fault)}
        aria-describedby={fault ? `${id}-note` : undefined}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {fault && (
        <p id={`${id}-note`} class="fault">
          <Prose text={fault} />
        </p>
      )}
    </div>
  );
}
