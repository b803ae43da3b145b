import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { Icon } from "../parts/icon";
import { copy } from "../parts/copy";
import { count, rate, seconds } from "../parts/format";
import { MOST_RENDERED, Markdown } from "../parts/markdown";
import { Notice, Prose, explained } from "../parts/notice";
import type { Answer, Conversation, ToolCall, UserTurn } from "./conversation";

const STARTERS = ["What is the capital of France?", "What is RayLLM?", "Write a haiku about queues."];
// Pixels from the end within which the view follows what is written.
const NEAR = 60;
// Seconds; the speed of a shorter answer says more of the network than of the model.
const SHORTEST = 0.1;

interface Props {
  pane: Conversation;
  label: string;
  isStructured: boolean;
  canAsk: boolean;
  onRegenerate: () => void;
  onResults: () => void;
  onAsk: (text: string) => void;
  askKey: () => void;
}

export function Pane({ pane, label, isStructured, canAsk, onRegenerate, onResults, onAsk, askKey }: Props) {
  const scrolled = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const turnCount = useRef(0);
  const onScroll = () => {
    const box = scrolled.current;
    if (box) follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  useLayoutEffect(() => {
    if (pane.turns.length !== turnCount.current) follows.current = true;
    turnCount.current = pane.turns.length;
    const box = scrolled.current;
    if (box && follows.current) box.scrollTop = box.scrollHeight;
  });

  const last = pane.turns.length - 1;
  return (
    <div class="pane" ref={scrolled} onScroll={onScroll} tabIndex={0} role="region" aria-label={label}>
      {pane.turns.length === 0 ? (
        <div class="welcome">
          <p class="welcome-title">{pane.model ? `Talk to ${pane.model}` : "Talk to a model"}</p>
          <ul>
            {STARTERS.map((text) => (
              <li key={text}>
                <button type="button" disabled={!canAsk} onClick={() => onAsk(text)}>
                  {text}
                </button>
              </li>
            ))}
          </ul>
        </div>
      ) : (
        <ol class="turns">
          {pane.turns.map((turn, index) => (
            <li key={index} class={turn.role}>
              {turn.role === "user" ? (
                <Asked turn={turn} />
              ) : (
                <Answered
                  answer={turn}
                  isLast={index === last && !pane.isBusy}
                  isStructured={isStructured}
                  onChange={() => pane.changed()}
                  onRegenerate={onRegenerate}
                  onResults={onResults}
                  askKey={askKey}
                />
              )}
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}

function Asked({ turn }: { turn: UserTurn }) {
  return (
    <div class="asked">
      <h2 class="off-screen">You</h2>
      {turn.pictures.map((picture, index) => (
        <img key={index} src={picture.url} alt={picture.name} />
      ))}
      {turn.text && <p dir="auto">{turn.text}</p>}
    </div>
  );
}

interface AnsweredProps {
  answer: Answer;
  isLast: boolean;
  isStructured: boolean;
  onChange: () => void;
  onRegenerate: () => void;
  onResults: () => void;
  askKey: () => void;
}

function Answered({ answer, isLast, isStructured, onChange, onRegenerate, onResults, askKey }: AnsweredProps) {
  const isGrowing = answer.state === "waiting" || answer.state === "streaming";
  const isKeyRefused = answer.error?.status === 401;
  return (
    <article class="answered" aria-busy={isGrowing}>
      <h2 class="speaker">{answer.model}</h2>
      {answer.reasoning && (
        <details class="reasoning" open={isGrowing && !answer.text}>
          <summary>Reasoning</summary>
          <p dir="auto">{answer.reasoning.slice(-MOST_RENDERED)}</p>
        </details>
      )}
      {answer.state === "waiting" && <Waiting since={answer.startedAt} />}
      {answer.text && <Text text={answer.text} isGrowing={isGrowing} isStructured={isStructured} />}
      {answer.calls.length > 0 && <Calls calls={answer.calls} canAnswer={isLast && !isGrowing} onChange={onChange} onResults={onResults} />}
      {answer.error && (
        <Notice
          kind="error"
          action={
            isLast && (
              <>
                {isKeyRefused && (
                  <button type="button" onClick={askKey}>
                    Enter a key
                  </button>
                )}
                <button type="button" onClick={onRegenerate}>
                  Try again
                </button>
              </>
            )
          }
        >
          <Prose text={explained(answer.error)} />
        </Notice>
      )}
      {answer.state === "stopped" && <p class="remark">Stopped.</p>}
      {answer.finishReason === "length" && <p class="remark">The limit of tokens was reached: raise “Max tokens” for a longer answer.</p>}
      {!isGrowing && <Foot answer={answer} isLast={isLast} onRegenerate={onRegenerate} />}
    </article>
  );
}

/** How long nothing has come yet, once that is worth saying. */
function Waiting({ since }: { since: number }) {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const passed = Math.floor((now - since) / 1000);
  return (
    <p class="waiting">
      <span class="spinner" aria-hidden="true" />
      <span>{passed < 3 ? "Waiting for the first token" : `Waiting for the first token (${passed} s)`}</span>
    </p>
  );
}

function Text({ text, isGrowing, isStructured }: { text: string; isGrowing: boolean; isStructured: boolean }) {
  const [isWhole, setIsWhole] = useState(false);
  if (isStructured && looksLikeJson(text)) return <Structured text={text} isGrowing={isGrowing} />;
  const rest = text.length - MOST_RENDERED;
  if (rest <= 0) return <Markdown text={text} isGrowing={isGrowing} />;
  return (
    <>
      {isWhole ? (
        <pre class="plain" dir="auto" tabIndex={0}>
          {text}
        </pre>
      ) : (
        <Markdown text={text.slice(0, MOST_RENDERED)} isGrowing={false} />
      )}
      <p class="remark">
        {isWhole ? "The whole answer, as plain text." : `The answer goes on for ${count(rest)} characters.`}{" "}
        <button type="button" class="small" onClick={() => setIsWhole(!isWhole)}>
          {isWhole ? "Show the beginning" : "Show all as plain text"}
        </button>
      </p>
    </>
  );
}

function looksLikeJson(text: string): boolean {
  return /^\s*[{["\d\-tfn]/.test(text);
}

function Structured({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  let shown = text;
  let isJson = true;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    isJson = false;
  }
  // A fence that no answer can close.
  const fence = "`".repeat(3 + Math.max(0, ...[...shown.matchAll(/`+/g)].map((run) => run[0].length)));
  return (
    <>
      <Markdown text={`${fence}json\n${shown.slice(0, MOST_RENDERED)}\n${fence}`} isGrowing={isGrowing} />
      {!isGrowing && <p class="remark">{isJson ? "Valid JSON." : "This is not complete JSON: the answer ended before it was."}</p>}
    </>
  );
}

function Calls({ calls, canAnswer, onChange, onResults }: { calls: ToolCall[]; canAnswer: boolean; onChange: () => void; onResults: () => void }) {
  return (
    <div class="calls">
      {calls.map((call, index) => (
        <section key={index} class="call" aria-label={`Call of ${call.name}`}>
          <header>
            <Icon name="tool" />
            <span class="call-name">{call.name}</span>
          </header>
          <pre tabIndex={0} aria-label="Arguments" role="region">
            {pretty(call.arguments)}
          </pre>
          {canAnswer ? (
            <label class="field">
              <span>What it returned</span>
              <textarea
                rows={2}
                spellcheck={false}
                placeholder='{"temperature": 26.1}'
                value={call.result}
                onInput={(event) => {
                  call.result = event.currentTarget.value;
                  onChange();
                }}
              />
            </label>
          ) : (
            call.result && (
              <pre tabIndex={0} aria-label="Result" role="region">
                {pretty(call.result)}
              </pre>
            )
          )}
        </section>
      ))}
      {canAnswer && (
        <button type="button" class="primary" disabled={!calls.every((call) => call.result.trim())} onClick={onResults}>
          {calls.length > 1 ? "Send the results" : "Send the result"}
        </button>
      )}
    </div>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Foot({ answer, isLast, onRegenerate }: { answer: Answer; isLast: boolean; onRegenerate: () => void }) {
  const decoding = (answer.endedAt - answer.firstAt) / 1000;
  const speed = answer.tokens && answer.firstAt && decoding > SHORTEST ? (answer.tokens - 1) / decoding : null;
  const facts = [
    answer.tokens !== null && `${count(answer.tokens)} ${answer.tokens === 1 ? "token" : "tokens"}`,
    speed !== null && `${rate(speed)} tokens/s`,
    answer.firstAt > 0 && `first after ${seconds((answer.firstAt - answer.startedAt) / 1000)}`,
    `${seconds((answer.endedAt - answer.startedAt) / 1000)} in all`,
  ].filter(Boolean);
  return (
    <footer class="foot">
      <span class="facts">{facts.join(" · ")}</span>
      <span class="foot-actions">
        {answer.requestId && (
          <a class="button quiet small" href={`#requests/${encodeURIComponent(answer.requestId)}`}>
            Where the time went
          </a>
        )}
        {answer.text && (
          <button type="button" class="quiet small" onClick={(event) => void copy(answer.text, event.currentTarget)}>
            Copy
          </button>
        )}
        {isLast && (
          <button type="button" class="quiet small" onClick={onRegenerate}>
            Regenerate
          </button>
        )}
      </span>
    </footer>
  );
}
