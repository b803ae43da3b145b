import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { onKeyChange } from "../api/session";

export interface Polled<T> {
  value: T | null;
  error: unknown;
  reload: () => void;
}

/** What `load` returns, again every so often while the page is seen: `pause` is the milliseconds until the next time. */
export function usePolled<T>(load: (signal: AbortSignal) => Promise<T>, pause: (value: T | null, error: unknown) => number, isOn = true): Polled<T> {
  const [state, setState] = useState<{ value: T | null; error: unknown }>({ value: null, error: null });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((count) => count + 1), []);
  const latest = useRef({ load, pause });
  latest.current = { load, pause };

  useEffect(() => onKeyChange(reload), [reload]);
  useEffect(() => {
    if (!isOn) return undefined;
    const aborting = new AbortController();
    let timer = 0;
    const run = async () => {
      if (document.hidden) return;
      let value: T | null = null;
      let failure: unknown = null;
      try {
        value = await latest.current.load(aborting.signal);
        if (!aborting.signal.aborted) setState({ value, error: null });
      } catch (error) {
        failure = error;
        // What was known stays on the page.
        if (!aborting.signal.aborted) setState((old) => ({ value: old.value, error }));
      }
      if (!aborting.signal.aborted) timer = window.setTimeout(run, latest.current.pause(value, failure));
    };
    const onVisible = () => {
      clearTimeout(timer);
      void run();
    };
    document.addEventListener("visibilitychange", onVisible);
    void run();
    return () => {
      aborting.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [round, isOn]);
  return { ...state, reload };
}
