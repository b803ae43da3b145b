/** Icons, drawn with lines on a grid of 24. They say nothing to screen readers: what they stand beside does. */

const PATHS = {
  chat: "M20 15a3 3 0 0 1-3 3H9l-5 3V7a3 3 0 0 1 3-3h10a3 3 0 0 1 3 3z",
  models: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  requests: "M4 6h9M4 12h16M4 18h12",
  usage: "M5 20v-7M12 20V4M19 20v-11",
  key: "M14.5 9.5a4.5 4.5 0 1 1-1.3-3.2 4.5 4.5 0 0 1 1.3 3.2zM13.4 12.4L20 19M17 16l2-2",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  compare: "M12 4v16M4 6h4.5v12H4zM20 6h-4.5v12H20z",
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5",
  plus: "M12 5v14M5 12h14",
  image: "M5 5h14v14H5zM5 16l4.5-4.5L14 16M13 14l2-2 4 4M15 9h.01",
  close: "M6 6l12 12M18 6L6 18",
  retry: "M20 12a8 8 0 1 1-2.5-5.8M20 3v4.5h-4.5",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-2.5 2.5 1.5 1.5L21 7a4 4 0 0 1-5.3 5L8 19.700a2 2 0 0 1-2.800-2.800L13 9a4 4 0 0 1 1.500-2.500z",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.500 2",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" />
      <path d="M9.500 16h3M16 16l6-6.200M16 16h7M16 16l6 6.200" />
      <circle cx="14.500" cy="16" r="2.600" />
    </svg>
  );
}
