//! Bounds from what was used at most, with room.

use super::Seen;

/// What is proposed: memory and time. Nothing else is measured.
pub(super) fn lines(runs: &[Seen]) -> Vec<(&'static str, String)> {
    let used = || runs.iter().filter_map(|run| run.used.as_ref());
    let mut lines = Vec::new();
    if let Some(peak) = used()
        .map(|used| used.peak_bytes)
        .max()
        .filter(|peak| *peak > 0)
    {
        lines.push(("memory", format!("{}M", memory_mib(peak))));
    }
    if let Some(longest) = used().map(|used| used.duration_ms).max() {
        lines.push(("time", format!("{}m", minutes(longest))));
    }
    if let Some(most) = used().map(|used| used.cpu_ms).max() {
        lines.push(("cpu", format!("{}m", minutes(most))));
    }
    lines
}

/// Twice the peak, in steps of 256 MiB.
fn memory_mib(peak_bytes: u64) -> u64 {
    const STEP: u64 = 256 << 20;
    peak_bytes.saturating_mul(2).div_ceil(STEP).max(1) * 256
}

/// Three times as long, in whole minutes, five at least: machines differ.
fn minutes(ms: u64) -> u64 {
    ms.saturating_mul(3).div_ceil(60_000).max(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_above_what_was_used() {
        for (peak, mib) in [
            (1, 256),
            (128 << 20, 256),
            (129 << 20, 512),
            (3 << 30, 6144),
        ] {
            assert_eq!(memory_mib(peak), mib, "{peak}");
        }
        for (ms, expected) in [(0, 5), (100_000, 5), (600_000, 30), (600_001, 31)] {
            assert_eq!(minutes(ms), expected, "{ms}");
        }
    }
}
