/** Copy a text, and say so on the button for a moment. */
export async function copy(text: string, button: HTMLButtonElement): Promise<void> {
  const label = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

// `navigator.clipboard` is for pages of https and of this machine.
function copiedBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "off-screen";
  const host = document.querySelector("dialog[open]") ?? document.body;
  host.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}
