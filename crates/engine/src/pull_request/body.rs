//! What a pull request says: the summary of the run, without what is nobody else's business.

use crate::run::RunResult;

/// BOUND: forges take some 65,000 characters.
const BODY: usize = 60_000;
/// BOUND: as much as a list of requests shows.
const TITLE: usize = 120;

/// The title, where none was given. Of the agent's words there is none in it.
pub fn title(result: &RunResult) -> String {
    let title = match &result.name {
        Some(name) => format!("{name} (ringfence run {})", result.run),
        None => format!("Changes of ringfence run {}", result.run),
    };
    title.chars().take(TITLE).collect()
}

/// The text. HOSTILE: the summary has what an agent chose in code spans only, so that it mentions
/// nobody and links nowhere.
pub fn body(result: &RunResult, bundle_sha256: &str) -> String {
    let summary = result.summary();
    let end = summary.find("\n## Where to look next");
    let summary = &summary[..end.unwrap_or(summary.len())];
    let mut text = String::new();
    for line in summary.lines() {
        // A path of the host tells strangers more than it should.
        if line.starts_with("- folder: ") {
            continue;
        }
        if text.len() + line.len() > BODY {
            text.push_str("\n… the rest is in the bundle\n");
            break;
        }
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&format!("\nRingfence-Run: {}\n", result.run));
    text.push_str(&format!("Ringfence-Bundle: sha256:{bundle_sha256}\n"));
    text
}
