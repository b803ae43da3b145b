/** Server-sent events. https://html.spec.whatwg.org/multipage/server-sent-events.html */

/** The `data` of each event of a body, as it comes. */
export async function* eventData(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  // Pieces of the line that has not ended: a huge one comes in many.
  let pieces: string[] = [];
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const lines = decoder.decode(value, { stream: !done }).split("\n");
      for (let index = 0; index < lines.length - 1; index += 1) {
        const line = (pieces.join("") + lines[index]).replace(/\r$/, "");
        pieces = [];
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (!line && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
      pieces.push(lines.at(-1) ?? "");
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
