//! Hunks that one patch has and another has not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;

use ringfence_model::ByteText;
use ringfence_model::bundle::{PATCH, most_bytes};
use serde::Serialize;

use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::run::RunResult;

/// BOUND: hunks that are listed of one attempt, and bytes of each; the rest is counted.
const LISTED: usize = 50;
const HUNK_BYTES: usize = 4096;

/// What an attempt has and the best one has not.
#[derive(Clone, Debug, Serialize)]
pub struct Hunks {
    pub run: RunId,
    /// How many it has in common with the best one.
    pub shared: usize,
    pub others: Vec<Other>,
    pub more: usize,
}

/// One hunk.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    pub path: ByteText,
    /// As it stands in the patch.
    pub text: ByteText,
}

/// A path, and what is done to it there, wherever in the file that is.
type Hunk = (ByteText, Vec<u8>);

pub(super) fn others(
    home: &Home,
    order: &[RunId],
    found: &BTreeMap<RunId, RunResult>,
) -> Result<Vec<Hunks>, Error> {
    let mut of_best = BTreeSet::new();
    let mut all = Vec::new();
    for (at, run) in order.iter().enumerate() {
        let path = home.bundle(*run).join(PATCH);
        let mut text = Vec::new();
        let read = fs::File::open(&path)
            .and_then(|file| file.take(most_bytes(PATCH)).read_to_end(&mut text));
        read.map_err(|source| Error::ReadFile { path, source })?;
        let paths = found[run].changes.iter().map(|change| &change.path);
        let own = hunks(&text, paths);
        if at == 0 {
            of_best = own.into_iter().map(|(hunk, _)| hunk).collect();
            continue;
        }
        let (shared, mut others): (Vec<_>, Vec<_>) = own
            .into_iter()
            .partition(|(hunk, _)| of_best.contains(hunk));
        let more = others.len().saturating_sub(LISTED);
        others.truncate(LISTED);
        let other = |((path, _), text): (Hunk, Vec<u8>)| Other {
            path,
            text: ByteText::from(&text[..text.len().min(HUNK_BYTES)]),
        };
        all.push(Hunks {
            run: *run,
            shared: shared.len(),
            others: others.into_iter().map(other).collect(),
            more,
        });
    }
    Ok(all)
}

/// The hunks of a patch, whose files are those of the changes, in order. A file without hunks is one.
///
/// HOSTILE: a line of content has a sign before it, and base 85 has no space: no content begins as a
/// header does.
fn hunks<'a>(text: &[u8], mut paths: impl Iterator<Item = &'a ByteText>) -> Vec<(Hunk, Vec<u8>)> {
    let mut found: Vec<(Hunk, Vec<u8>)> = Vec::new();
    let mut path: Option<&ByteText> = None;
    let mut in_hunk = false;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b"diff --git ") {
            path = paths.next();
            in_hunk = false;
            let start = path.map(|path| ((path.clone(), Vec::new()), Vec::new()));
            found.extend(start);
            continue;
        }
        let (Some(path), Some((hunk, whole))) = (path, found.last_mut()) else {
            continue;
        };
        if line.starts_with(b"@@ -") {
            let only_header = !in_hunk;
            in_hunk = true;
            if only_header {
                // The header goes with its first hunk.
                hunk.1.clear();
                whole.clear();
                whole.extend(line);
            } else {
                found.push(((path.clone(), Vec::new()), line.to_vec()))
            }
            continue;
        }
        // Two attempts that change the same lines at other places have the same hunk. Ids of whole
        // files differ with any other hunk in them.
        if !line.starts_with(b"index ") || in_hunk {
            hunk.1.extend(line);
        }
        whole.extend(line);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_told_apart_by_what_they_do() {
        let one = b"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n\
            @@ -9 +9 @@\n-c\n+diff --git a/y b/y\n";
        let two = b"diff --git a/x b/x\nindex 1..3 100644\n--- a/x\n+++ b/x\n@@ -2 +2 @@\n-a\n+b\n";
        let paths = [ByteText::from("x")];
        let one = hunks(one, paths.iter());
        let two = hunks(two, paths.iter());
        assert_eq!((one.len(), two.len()), (2, 1));
        assert_eq!(one[0].0, two[0].0);
        assert_eq!(one[1].1, b"@@ -9 +9 @@\n-c\n+diff --git a/y b/y\n");
    }

    #[test]
    fn a_file_without_hunks_is_told_as_well() {
        let text = b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n";
        let paths = [ByteText::from("x")];
        let found = hunks(text, paths.iter());
        assert_eq!(found[0].1, b"old mode 100644\nnew mode 100755\n");
    }
}
