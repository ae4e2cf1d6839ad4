//! One task by itself, made ready for `run`: its document, whether it fits this folder, what is
//! hidden from it, and what its agent is told.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::agent::BRIEF;
use ringfence_model::agent::FEEDBACK;
use ringfence_model::bundle::Base;
use ringfence_model::policy::Line;
use ringfence_model::policy::glob::Globs;
use ringfence_model::policy::network::Origin;
use ringfence_model::task::{MAX_BYTES, Stage, Task};

use super::{CampaignError, Typed};
use crate::agents;
use crate::backend::Backend;
use crate::base::files::list;
use crate::error::Error;
use crate::git;
use crate::home::Home;
use crate::run::RunRequest;
use crate::workspace::Folder;

/// BOUND: bytes of one word of a command line; the kernel takes 128 KiB.
const MAX_WORD: usize = 100 << 10;
/// BOUND: paths that are hidden so that only some are seen; each is in the bundle's policy.
const MAX_HIDDEN: usize = 5000;

/// Reads a task document.
pub fn open_task(path: &Path) -> Result<Task, Error> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => CampaignError::NoTaskFile(path.to_owned()),
        _ => CampaignError::Read {
            path: path.to_owned(),
            source,
        },
    };
    let file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(CampaignError::NotAFile(path.to_owned()).into());
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(failed)?;
    let task = Task::parse(&bytes).map_err(|source| CampaignError::Task {
        path: path.to_owned(),
        source,
    })?;
    Ok(task)
}

/// The folder that a task is about.
pub fn source_folder(task: &Task) -> Result<PathBuf, Error> {
    use std::os::unix::ffi::OsStringExt as _;
    let text = ByteText::from_text(&task.source).filter(|path| path.as_bytes().starts_with(b"/"));
    let elsewhere = || CampaignError::SourceElsewhere(task.source.clone());
    let bytes = text.ok_or_else(elsewhere)?.0;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// Refuses a task that was made for something else than this folder and host.
pub fn fits(task: &Task, folder: &Folder, backend: &dyn Backend) -> Result<(), Error> {
    let requires = |what: String, found: String| CampaignError::Requires {
        task: task.id.clone(),
        what,
        found,
    };
    let backends = &task.requires.backends;
    if !backends.is_empty() && !backends.iter().any(|name| name == backend.name()) {
        let what = format!("the backend {}", backends.join(" or "));
        return Err(requires(what, format!("`{}`", backend.name())).into());
    }
    if let Some(wanted) = &task.requires.architecture
        && wanted != std::env::consts::ARCH
    {
        let found = std::env::consts::ARCH.to_owned();
        return Err(requires(format!("the architecture {wanted}"), found).into());
    }
    if let Base::Commit { commit, prefix, .. } | Base::DirtyFolder { commit, prefix, .. } =
        &task.base
    {
        let repository = git::discover(folder.path())?;
        let found = repository.as_ref().and_then(git::head_commit);
        if found.as_ref() != Some(commit) {
            return Err(CampaignError::OtherCommit {
                task: task.id.clone(),
                was: commit.clone(),
                is: found.unwrap_or_else(|| "none".to_owned()),
            }
            .into());
        }
        let is = repository.map(|own| own.prefix).unwrap_or_default();
        if is != prefix.as_bytes() {
            return Err(CampaignError::OtherPlace {
                task: task.id.clone(),
                was: place(prefix),
                is: place(&ByteText(is)),
            }
            .into());
        }
    }
    for path in &task.files {
        use std::os::unix::ffi::OsStrExt as _;
        let place = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
        if folder.path().join(place).symlink_metadata().is_err() {
            return Err(CampaignError::FileGone(path.to_text()).into());
        }
    }
    Ok(())
}

/// Where a folder is in its repository.
fn place(prefix: &ByteText) -> String {
    match prefix.as_bytes() {
        b"" => "the top of its repository".to_owned(),
        _ => format!("`{}` of its repository", prefix.to_text()),
    }
}

/// Patterns that hide all but what a task is to see.
pub fn hidden(task: &Task, folder: &Folder, file: &Path) -> Result<Vec<Line>, Error> {
    if task.stage == Stage::Whole {
        return Ok(Vec::new());
    }
    let seen: BTreeSet<&[u8]> = task
        .files
        .iter()
        .chain(&task.beside)
        .map(ByteText::as_bytes)
        .collect();
    let mut ways: BTreeSet<&[u8]> = seen.clone();
    for path in &seen {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        ways.extend(slashes.map(|(at, _)| &path[..at]));
    }
    let from = Origin {
        file: file.display().to_string(),
        line: 0,
    };
    let mut lines = Vec::new();
    for entry in list(folder.path(), |path| !ways.contains(path))? {
        if ways.contains(&entry.path[..]) {
            continue;
        }
        let path = ByteText::from(&entry.path[..]);
        let cannot = || CampaignError::CannotHide(path.to_text());
        let text = std::str::from_utf8(path.as_bytes()).map_err(|_| cannot())?;
        if lines.len() == MAX_HIDDEN {
            return Err(CampaignError::TooMuchToHide { most: MAX_HIDDEN }.into());
        }
        lines.push(Line {
            text: format!("/{}", globset::escape(text)),
            from: from.clone(),
        });
    }
    // What hides does so whatever the case of letters is.
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    let globs = Globs::parse(&texts).map_err(CampaignError::Pattern)?;
    let lost = seen
        .iter()
        .find(|path| crate::workspace::is_hidden(&globs, path));
    match lost {
        Some(path) => Err(CampaignError::CannotHide(ByteText::from(*path).to_text()).into()),
        None => Ok(lines),
    }
}

/// What an agent is told: the brief, and which files are its own.
pub fn prompt(task: &Task) -> String {
    let mut text = task.brief.text.trim_end().to_owned();
    text.push_str("\n\nFiles of this task:\n");
    for path in &task.files {
        text.push_str(&format!("- {}\n", path.to_text()));
    }
    text
}

/// Gives a request its agent: words, and all else that one by name needs. What is on its standard
/// input, if anything, is returned.
pub fn agent(
    home: &Home,
    task: &Task,
    typed: &Typed,
    request: &mut RunRequest,
) -> Result<Option<String>, Error> {
    let prompt = prompt(task);
    let words = typed.words.as_slice();
    let (name, words) = match (&typed.agent, words, &task.agent.command) {
        (Some(name), more, _) => (Some(name), more.to_vec()),
        (None, [_, ..], _) => (None, words.to_vec()),
        (None, [], Some(own)) => (None, own.iter().map(|word| word.as_str().into()).collect()),
        (None, [], None) => (task.agent.preset.as_ref(), Vec::new()),
    };
    if let Some(name) = name {
        let prepared = agents::prepare(home, name, &prompt, &words, &request.folder)?;
        return Ok(prepared.join(request)?);
    }
    let (words, input) = placed(&words, &prompt)?;
    request.argv = words;
    Ok(input)
}

/// A prompt in the words that ask for it; given back where none does.
pub fn placed(words: &[ByteText], prompt: &str) -> Result<(Vec<ByteText>, Option<String>), Error> {
    // HOSTILE: names of files are in it, and nothing of it is a place for what checks say later.
    let harmless = prompt.replace(FEEDBACK, "{ feedback }");
    let mut placed = false;
    let mut fill = |word: &ByteText| match std::str::from_utf8(word.as_bytes()) {
        Ok(text) if text.contains(BRIEF) => {
            placed = true;
            ByteText::from(&*text.replace(BRIEF, &harmless))
        }
        _ => word.clone(),
    };
    let words: Vec<ByteText> = words.iter().map(&mut fill).collect();
    if placed && words.iter().any(|word| word.as_bytes().len() > MAX_WORD) {
        return Err(CampaignError::WordsTooLong.into());
    }
    Ok((words, (!placed).then(|| prompt.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_prompt_is_a_place_for_feedback() {
        let words = [
            ByteText::from("agent"),
            ByteText::from("{brief} {feedback}"),
        ];
        let (placed, input) = placed(&words, "- {feedback}.txt\n").unwrap();
        assert_eq!(placed[1], ByteText::from("- { feedback }.txt\n {feedback}"));
        assert_eq!(input, None);
    }
}
