//! Files of agents: those that are built in, and those of the user in the home of Ringfence.

use std::path::PathBuf;

use ringfence_model::agent::{AgentText, Preset, is_name};

use super::AgentError;
use crate::home::Home;
use crate::policy::read_own;

/// Where in the home the user's own are: `NAME.toml`.
const DIRECTORY: &str = "agents";
/// BOUND: files that stand on each other.
const MAX_DEPTH: usize = 8;
/// BOUND: files of the directory that are listed.
const MAX_LISTED: usize = 256;

/// Those that are built in, in the order in which they are listed.
const BUILT_IN: &[(&str, &str)] = &[
    ("claude", include_str!("known/claude.toml")),
    ("codex", include_str!("known/codex.toml")),
    ("gemini", include_str!("known/gemini.toml")),
    ("opencode", include_str!("known/opencode.toml")),
    ("aider", include_str!("known/aider.toml")),
];

/// Where an agent's file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    BuiltIn,
    File(PathBuf),
}

/// An agent, and where it is written.
#[derive(Clone, Debug)]
pub struct Known {
    pub preset: Preset,
    pub place: Place,
}

/// The agent of a name: the user's own file counts more than what is built in.
///
/// HOSTILE: nothing of the folder that is worked on is looked at; a name that is no plain word is
/// no file.
pub fn load(home: &Home, name: &str) -> Result<Known, AgentError> {
    if !is_name(name) {
        return Err(unknown(home, name));
    }
    let (text, place) = match own(home, name)? {
        Some((text, path)) => (text, Place::File(path)),
        None => (
            built_in(name).ok_or_else(|| unknown(home, name))??,
            Place::BuiltIn,
        ),
    };
    let mut text = text;
    // A file may stand on the one that is built in and has its own name.
    let mut standing = name.to_owned();
    for _ in 0..MAX_DEPTH {
        let Some(line) = text.extends.take() else {
            let preset = text.finish(name).map_err(AgentError::Document)?;
            return Ok(Known { preset, place });
        };
        let below = if line.text == standing {
            None
        } else {
            own(home, &line.text)?
        };
        let base = match below {
            Some((base, _)) => base,
            None => built_in(&line.text).ok_or_else(|| unknown(home, &line.text))??,
        };
        standing.clone_from(&line.text);
        text = text.over(base);
    }
    Err(AgentError::TooDeep(name.to_owned()))
}

/// All names, those of the user's own files included.
pub fn names(home: &Home) -> Vec<String> {
    let mut names: Vec<String> = BUILT_IN
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let entries = std::fs::read_dir(home.root().join(DIRECTORY));
    let own = entries
        .into_iter()
        .flatten()
        .take(MAX_LISTED)
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let name = name.strip_suffix(".toml")?;
            is_name(name).then(|| name.to_owned())
        });
    let mut own: Vec<String> = own.filter(|name| !names.contains(name)).collect();
    own.sort();
    names.extend(own);
    names
}

fn built_in(name: &str) -> Option<Result<AgentText, AgentError>> {
    let (_, text) = BUILT_IN.iter().find(|(own, _)| *own == name)?;
    let file = format!("agent:{name}");
    Some(AgentText::parse(text.as_bytes(), &file, None).map_err(AgentError::Document))
}

fn own(home: &Home, name: &str) -> Result<Option<(AgentText, PathBuf)>, AgentError> {
    let path = home.root().join(DIRECTORY).join(format!("{name}.toml"));
    let Some(bytes) = read_own(&path).map_err(|error| AgentError::File(Box::new(error)))? else {
        return Ok(None);
    };
    let user = std::env::home_dir();
    let text = AgentText::parse(&bytes, &path.to_string_lossy(), user.as_deref());
    Ok(Some((text.map_err(AgentError::Document)?, path)))
}

fn unknown(home: &Home, name: &str) -> AgentError {
    AgentError::Unknown {
        name: name.chars().take(64).collect(),
        known: names(home),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        (directory, home)
    }

    fn put(home: &Home, name: &str, text: &str) {
        let directory = home.root().join(DIRECTORY);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(name), text).unwrap();
    }

    #[test]
    fn all_that_are_built_in_can_be_read() {
        let (_directory, home) = home();
        for (name, _) in BUILT_IN {
            let known = load(&home, name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(known.preset.install.is_some() && !known.preset.keys.is_empty());
            assert_eq!(known.place, Place::BuiltIn);
        }
    }

    #[test]
    fn a_file_of_the_user_counts_more_and_may_stand_on_ours() {
        let (_directory, home) = home();
        put(
            &home,
            "claude.toml",
            "extends = 'claude'\nabout = 'mine'\n[env]\nset = { A = '1' }",
        );
        put(&home, "fast.toml", "extends = 'claude'\nneeds = ['git']");
        put(&home, "plain.toml", "command = ['sh', '-c', 'cat']");
        put(&home, "not a name.toml", "");
        assert_eq!(load(&home, "claude").unwrap().preset.about, "mine");
        let fast = load(&home, "fast").unwrap().preset;
        assert_eq!((fast.about.as_str(), fast.name.as_str()), ("mine", "fast"));
        assert_eq!(fast.needs, ["git"]);
        assert_eq!(fast.command[0], "claude");
        assert!(load(&home, "plain").unwrap().preset.keys.is_empty());
        assert_eq!(names(&home).len(), BUILT_IN.len() + 2);
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let (_directory, home) = home();
        for name in ["", "../x", "a/b", "nope", ".", "a b"] {
            let error = load(&home, name).unwrap_err();
            assert!(matches!(error, AgentError::Unknown { .. }), "{name}");
        }
        put(&home, "a.toml", "extends = 'b'");
        put(&home, "b.toml", "extends = 'a'");
        assert!(matches!(load(&home, "a"), Err(AgentError::TooDeep(_))));
        put(&home, "c.toml", "command = [");
        assert!(matches!(load(&home, "c"), Err(AgentError::Document(_))));
        std::fs::create_dir(home.root().join(DIRECTORY).join("d.toml")).unwrap();
        assert!(matches!(load(&home, "d"), Err(AgentError::File(_))));
    }
}
