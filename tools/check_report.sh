#!/usr/bin/env bash
# Opens an HTML report in a headless Chromium, light and dark: tools/check_report.sh REPORT.html [FOLDER FOR PICTURES]
# Exit code 77: there is no Chromium. Fails on an error or a warning of the page, and when it draws nothing.
set -euo pipefail
report=$(realpath "$1")
pictures=${2:-}
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "no chromium" >&2; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

browser() {
  timeout 120 "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/profile" \
    --window-size=1240,"${HEIGHT:-4200}" --virtual-time-budget=3000 --enable-logging=stderr "$@" "file://$report"
}
for scheme in light dark; do
  # preferredColorScheme: 0 dark, 1 light
  scheme_flag=--blink-settings=preferredColorScheme=$([ $scheme = dark ] && echo 0 || echo 1)
  browser "$scheme_flag" --screenshot="$folder/$scheme.png" >"$folder/log" 2>&1
  if grep -E 'CONSOLE' "$folder/log"; then echo "$scheme: the page complains" >&2; exit 1; fi
  test -s "$folder/$scheme.png"
  if [ -n "$pictures" ]; then mkdir -p "$pictures"; cp "$folder/$scheme.png" "$pictures/"; fi
done
browser --dump-dom >"$folder/dom" 2>/dev/null
for part in '<h1>' 'class="verdict' '<svg' 'aria-sort\|<table'; do
  grep -q "$part" "$folder/dom" || { echo "the page has no $part" >&2; exit 1; }
done
echo "$report: looks right in light and dark"
