//! The section on the loop.

use ringfence_model::rounds::Looped;

use super::super::result::Seconds;
use super::{code, count, plain};

/// What came of it, each check before the agent, and a line for each iteration.
pub(super) fn lines(rounds: &Option<Looped>) -> Vec<String> {
    let Some(looped) = rounds else {
        return Vec::new();
    };
    let (took, most) = (looped.iterations.len(), looped.most);
    let outcome = looped.outcome.as_str().replace('_', " ");
    let mut lines = vec![format!("outcome: **{outcome}**, {took} of at most {most}")];
    for check in &looped.baseline {
        let how = match check.exit_code {
            Some(code) => format!("exit {code}"),
            None => check.outcome.as_str().replace('_', " "),
        };
        let counts = check.counts.as_ref().map(|counts| format!("; {counts}"));
        let counts = counts.unwrap_or_default();
        lines.push(format!(
            "before the agent: {}: {how}{counts}",
            code(&check.command)
        ));
    }
    for own in &looped.iterations {
        let kept = if own.kept {
            ""
        } else {
            ", its patch is not kept"
        };
        lines.push(format!(
            "iteration {}: {} after {}; {}, +{} −{} lines; {}; patch `{}`{kept}",
            own.number,
            own.ending(),
            Seconds(own.duration_ms),
            count(own.changed_files, "changed file"),
            own.insertions,
            own.deletions,
            own.standing(),
            own.patch_sha256.get(..12).unwrap_or_default(),
        ));
    }
    lines.extend(looped.notes.iter().map(|note| plain(note)));
    lines
}
