import { useEffect, useRef, useState } from "preact/hooks";

import { Icon } from "../parts/icon";
import type { Picture, UserTurn } from "./conversation";

// The router's default for a whole request, `max_body_bytes`, is 32 MiB; base64 makes four bytes of three.
const LARGEST_MB = 20;
const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];

interface Props {
  draft: UserTurn;
  setDraft: (draft: UserTurn) => void;
  onSend: (turn: UserTurn) => void;
  onStop: () => void;
  isBusy: boolean;
  canSee: boolean;
  canSend: boolean;
  fault: string;
}

export function Composer({ draft, setDraft, onSend, onStop, isBusy, canSee, canSend, fault }: Props) {
  const area = useRef<HTMLTextAreaElement>(null);
  const files = useRef<HTMLInputElement>(null);
  const [refused, setRefused] = useState("");
  const latest = useRef(draft);
  latest.current = draft;

  useEffect(() => {
    // As high as its text, up to what the style allows.
    const box = area.current;
    if (!box) return;
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight + 2}px`;
  }, [draft.text]);

  const isReady = canSend && !isBusy && Boolean(draft.text.trim() || draft.pictures.length);
  const send = () => {
    if (!isReady) return;
    setRefused("");
    onSend(draft);
    area.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const add = async (list: Iterable<File>) => {
    const faults: string[] = [];
    const pictures: Picture[] = [];
    for (const file of list) {
      if (!KINDS.includes(file.type)) faults.push(`${file.name} is no PNG, JPEG, WebP or GIF.`);
      else if (file.size > LARGEST_MB * 1e6) faults.push(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; an image may have ${LARGEST_MB} MB.`);
      else pictures.push({ name: file.name, url: await dataUrl(file) });
    }
    setRefused(faults.join(" "));
    if (pictures.length) setDraft({ ...latest.current, pictures: [...latest.current.pictures, ...pictures] });
  };
  const onPaste = (event: ClipboardEvent) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    if (canSee) void add(pasted);
    else setRefused("The chosen model does not see images.");
  };
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    if (canSee) void add(event.dataTransfer?.files ?? []);
    else setRefused("The chosen model does not see images.");
  };

  const note = refused || fault;
  return (
    <div class="composer" onDrop={onDrop} onDragOver={(event) => event.preventDefault()}>
      {note && (
        <p class="fault" role="alert">
          {note}
        </p>
      )}
      <div class="box">
        {draft.pictures.length > 0 && (
          <ul class="pictures" aria-label="Images to send">
            {draft.pictures.map((picture, index) => (
              <li key={index}>
                <img src={picture.url} alt={picture.name} />
                <button
                  type="button"
                  class="square"
                  aria-label={`Remove ${picture.name}`}
                  onClick={() => setDraft({ ...draft, pictures: draft.pictures.filter((_, each) => each !== index) })}
                >
                  <Icon name="close" />
                </button>
              </li>
            ))}
          </ul>
        )}
        <textarea
          id="composer"
          ref={area}
          rows={1}
          dir="auto"
          aria-label="Message"
          placeholder="Write a message"
          value={draft.text}
          onInput={(event) => setDraft({ ...draft, text: event.currentTarget.value })}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
        <div class="box-end">
          {canSee && (
            <>
              <input
                ref={files}
                type="file"
                class="off-screen"
                accept={KINDS.join(",")}
                multiple
                tabIndex={-1}
                aria-label="Images"
                onChange={(event) => {
                  void add([...(event.currentTarget.files ?? [])]);
                  event.currentTarget.value = "";
                }}
              />
              <button type="button" class="quiet square" aria-label="Add images" onClick={() => files.current?.click()}>
                <Icon name="image" />
              </button>
            </>
          )}
          <span class="keys" aria-hidden="true">
            <kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> starts a line
          </span>
          {isBusy ? (
            <button type="button" class="primary round" aria-label="Stop" onClick={onStop}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="button" class="primary round" aria-label="Send" onClick={send} disabled={!isReady}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </div>
  );
}

function dataUrl(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
