import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { Icon } from "./icon";

/** A modal dialog; the browser keeps the focus in it and gives it back. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const onClick = (event: MouseEvent) => {
    if (event.target === dialog.current) dialog.current?.close();
  };
  return (
    <dialog ref={dialog} class={wide ? "wide" : ""} aria-labelledby={id} onClose={onClose} onClick={onClick}>
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <button type="button" class="quiet square" aria-label="Close" onClick={() => dialog.current?.close()}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
