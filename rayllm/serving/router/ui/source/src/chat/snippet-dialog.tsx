import { useState } from "preact/hooks";

import { copy } from "../parts/copy";
import { Dialog } from "../parts/dialog";
import { asCurl, asPython } from "./snippets";

const LANGUAGES = { curl: asCurl, Python: asPython } as const;
type Language = keyof typeof LANGUAGES;

/** The request as code. It names the key's environment variable, and never shows the key. */
export function SnippetDialog({ body, hasKey, onClose }: { body: Record<string, unknown>; hasKey: boolean; onClose: () => void }) {
  const [language, setLanguage] = useState<Language>("curl");
  const text = LANGUAGES[language](body, hasKey);
  return (
    <Dialog title="This request as code" onClose={onClose} wide>
      <div class="choices" role="group" aria-label="Language">
        {(Object.keys(LANGUAGES) as Language[]).map((each) => (
          <button key={each} type="button" class="small" aria-pressed={each === language} onClick={() => setLanguage(each)}>
            {each}
          </button>
        ))}
        <button type="button" class="small copy" onClick={(event) => void copy(text, event.currentTarget)}>
          Copy
        </button>
      </div>
      <pre class="snippet" tabIndex={0} role="region" aria-label={`The request in ${language}`}>
        {text}
      </pre>
    </Dialog>
  );
}
