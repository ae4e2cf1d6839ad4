//! `ringfence run --task`: one task document instead of options.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anstream::eprintln;
use ringfence_engine::campaign;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::policy;
use ringfence_engine::workspace::Folder;
use ringfence_model::ByteText;
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::{Bounds, Effective, Line};
use ringfence_model::task::Task;
use rustix::fs::MemfdFlags;

/// A task that is to be run. What is typed counts more than what it says.
#[derive(Debug)]
pub struct Tasked {
    file: PathBuf,
    task: Task,
    words: Vec<ByteText>,
    prompt: Option<String>,
}

impl Tasked {
    /// Reads the document; `typed` is the command, where there is one.
    pub fn open(file: &Path, typed: &[ByteText]) -> Result<Self, Error> {
        let task = campaign::open_task(file)?;
        let (words, prompt) = campaign::agent(&task, typed)?;
        if task.rounds.iterations > 1 || task.rounds.attempts > 1 {
            eprintln!("note: this command starts the agent once");
        }
        Ok(Self {
            file: file.to_owned(),
            task,
            words,
            prompt,
        })
    }

    pub fn folder(&self) -> Result<PathBuf, Error> {
        campaign::source_folder(&self.task)
    }

    pub fn words(&self) -> Vec<ByteText> {
        self.words.clone()
    }

    pub fn requires_hard(&self) -> bool {
        self.task.requires.hard_limits
    }

    /// The policy that it carries along.
    pub fn policy(&self, home: &Home, folder: &Folder) -> Result<Option<Effective>, Error> {
        let Some(own) = &self.task.policy else {
            return Ok(None);
        };
        let folder = Some(folder.path());
        let read = match (&own.name, &own.text) {
            (_, Some(text)) => policy::of_text(home, text, &self.file, folder)?,
            (name, None) => policy::of_host(home, name.as_deref().map(Path::new), folder)?,
        };
        Ok(Some(read))
    }

    pub fn bounds(&self) -> Bounds {
        campaign::bounds(&self.task.limits, &self.file)
    }

    /// Its checks: each runs before and after.
    pub fn checks(&self) -> Vec<Line> {
        let from = Origin {
            file: self.file.display().to_string(),
            line: 0,
        };
        let texts = self
            .task
            .checks
            .baseline
            .iter()
            .chain(&self.task.checks.last);
        let line = |text: &String| Line {
            text: text.clone(),
            from: from.clone(),
        };
        texts.map(line).collect()
    }

    /// Whether it is one for this folder, and what is hidden from it there.
    pub fn hidden(&self, folder: &Folder) -> Result<Vec<Line>, Error> {
        campaign::fits(&self.task, folder)?;
        campaign::hidden(&self.task, folder, &self.file)
    }

    /// What its agent reads from standard input; `None`: it is told by its command line.
    pub fn input(&self) -> io::Result<Option<File>> {
        let Some(prompt) = &self.prompt else {
            return Ok(None);
        };
        let memory = rustix::fs::memfd_create("brief", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(memory);
        file.write_all(prompt.as_bytes())?;
        file.rewind()?;
        Ok(Some(file))
    }
}
