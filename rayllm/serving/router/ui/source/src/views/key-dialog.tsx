import { useState } from "preact/hooks";

import { key, setKey } from "../api/session";
import { Dialog } from "../parts/dialog";

export function KeyDialog({ isRefused, onClose }: { isRefused: boolean; onClose: () => void }) {
  const [value, setValue] = useState("");
  const save = (event: Event) => {
    event.preventDefault();
    setKey(value.trim());
    onClose();
  };
  const forget = () => {
    setKey("");
    onClose();
  };
  return (
    <Dialog title="API key" onClose={onClose}>
      <form onSubmit={save}>
        {isRefused && <p class="fault">The service does not accept the key that is set: it may have been revoked.</p>}
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            placeholder={key() ? "A key is set; enter another" : "sk-…"}
            value={value}
            onInput={(event) => setValue(event.currentTarget.value)}
            autofocus
          />
        </label>
        <p class="help">It is sent with every request of this page, kept until the tab is closed, and never put into an address.</p>
        <div class="actions">
          {key() && (
            <button type="button" class="quiet" onClick={forget}>
              Forget the key
            </button>
          )}
          <button type="submit" class="primary" disabled={!value.trim()}>
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
