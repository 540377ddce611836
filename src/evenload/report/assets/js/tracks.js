// The timeline's slices, decoded from columns into typed arrays, and looked up by time.

function decodeTracks(timeline) {
  return timeline.rows.map((row) => {
    const n = row.start.length;
    const start = new Float64Array(n);
    const stop = new Float64Array(n);
    for (let i = 0, at = 0; i < n; i++) {
      at += row.start[i];
      start[i] = at / 1e6;
      stop[i] = (at + row.length[i]) / 1e6;
    }
    return {
      device: row.device,
      lane: row.lane,
      label: row.lane ? `${row.device} · ${row.lane + 1}` : row.device,
      n,
      start,
      stop,
      busy: Float64Array.from(row.busy, (us) => us / 1e6),
      idle: row.idle ?? [],
      stage: Int16Array.from(row.stage),
      status: Uint8Array.from(row.status),
      index: row.index,
      n_items: row.n_items,
      n_chunks: row.n_chunks,
      why: row.why,
    };
  });
}

// The first slice that may reach into what begins at t. Slices of a lane follow one another; waits and start-up
// may overlap them a little, hence the few steps back.
function firstFrom(track, t) {
  let low = 0;
  let high = track.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track.start[middle] < t) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 8);
}

// The slice at t, the latest to begin if there are several; -1 if none. `slack` seconds widen short ones.
function sliceAt(track, t, slack) {
  let found = -1;
  for (let i = firstFrom(track, t - slack); i < track.n && track.start[i] <= t + slack; i++) {
    if (track.stop[i] + slack >= t) found = i;
  }
  return found;
}

function niceStep(rough) {
  if (rough > 30) return [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find((one) => one >= rough) || 172800;
  if (rough > 10) return rough > 20 ? 30 : 20;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
}
