/** What this tab remembers: the key, settings and conversations. Nothing of it outlives the tab. */

const KEY = "rayllm.key";

type Listener = () => void;
const listeners = new Set<Listener>();

export function key(): string {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Keep a key for this tab, or forget it if it is empty. */
export function setKey(value: string): void {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  listeners.forEach((listener) => listener());
}

/** Call `listener` when the key changes; returns a function that stops it. */
export function onKeyChange(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** A value of an earlier load of this tab, or `fallback` if there is none that can be read. */
export function recall<T extends object>(name: string, fallback: T): T {
  try {
    return { ...fallback, ...JSON.parse(sessionStorage.getItem(`rayllm.${name}`) ?? "{}") };
  } catch {
    return fallback;
  }
}

/** Keep a value for later loads of this tab. */
export function remember(name: string, value: object): void {
  try {
    sessionStorage.setItem(`rayllm.${name}`, JSON.stringify(value));
  } catch {
    // Full, or switched off: the tab then remembers nothing, and works.
    try {
      sessionStorage.removeItem(`rayllm.${name}`);
    } catch {
      // Switched off.
    }
  }
}
