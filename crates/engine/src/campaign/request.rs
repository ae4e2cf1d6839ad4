//! A task becomes the request for a run: one function for the command line and for campaigns.
//! What is typed counts more than what the task says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::environment::NamedBy;
use ringfence_model::limits::Limits;
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::{Bounds, Effective, Line};
use ringfence_model::rounds::Rounds;
use ringfence_model::task::Task;

use super::bounds;
use super::single::{agent, fits, hidden, prompt, source_folder};
use crate::backend::{Choice, NAMES};
use crate::error::Error;
use crate::home::Home;
use crate::policy::{self, Asked};
use crate::run::RunRequest;
use crate::sandbox::SandboxError;
use crate::workspace::{Folder, Ignored, View, open_folder};

/// What is typed over a task, or without one.
#[derive(Debug)]
pub struct Typed {
    /// Another folder than that of the task.
    pub folder: Option<PathBuf>,
    /// Another agent than that of the task, by name.
    pub agent: Option<String>,
    /// Another command than that of the task; with an agent, more words for it.
    pub words: Vec<ByteText>,
    /// The policy that was typed; counts more than that of a task.
    pub policy: Option<PathBuf>,
    pub image: Option<Line>,
    pub setup_network: Vec<String>,
    pub limits: Bounds,
    /// Bounds where nobody says one.
    pub usual: Limits,
    pub hide: Vec<Line>,
    pub checks: Vec<Line>,
    pub env: Vec<(ByteText, ByteText)>,
    pub require_hard: bool,
    /// What holds the sandbox.
    pub backend: Choice,
    pub ignored: Ignored,
    pub same_path: bool,
    /// This program: it is also the gate.
    pub program: PathBuf,
    /// What a variable holds where the caller is.
    pub variable: fn(&str) -> Option<ByteText>,
}

impl Typed {
    /// Nothing is typed.
    pub fn nothing(
        program: PathBuf,
        usual: Limits,
        variable: fn(&str) -> Option<ByteText>,
    ) -> Self {
        Self {
            folder: None,
            agent: None,
            words: Vec::new(),
            policy: None,
            image: None,
            setup_network: Vec::new(),
            limits: Bounds::new(),
            usual,
            hide: Vec::new(),
            checks: Vec::new(),
            env: Vec::new(),
            require_hard: false,
            backend: Choice::default(),
            ignored: Ignored::LeftBehind,
            same_path: false,
            program,
            variable,
        }
    }

    /// What is asked of a policy, over one that came along where none is typed. Presets take
    /// nothing from the folder.
    pub fn asked(
        &self,
        own: Option<Effective>,
        home: &Home,
        folder: Option<&Path>,
    ) -> Result<Asked, Error> {
        let mut host = match own.filter(|_| self.policy.is_none()) {
            Some(own) => own,
            None => policy::of_host(home, self.policy.as_deref(), folder)?,
        };
        policy::allow_setup(home, &mut host, &self.setup_network, folder)?;
        if let Some(image) = &self.image {
            host.environment.set_image(image.clone(), NamedBy::User);
        }
        let value = |line: &Line| Some((line.text.clone(), (self.variable)(&line.text)?));
        let caller: BTreeMap<String, ByteText> = host.env.pass.iter().filter_map(value).collect();
        Ok(Asked {
            host,
            usual: self.usual.clone(),
            limits: self.limits.clone(),
            hide: self.hide.clone(),
            caller,
        })
    }

    /// What is asked of a folder, if no other is typed.
    pub fn request(&self, home: &Home, folder: &Path) -> Result<RunRequest, Error> {
        self.request_of(home, folder, None)
    }

    /// What holds the sandbox of a task: what is typed counts more than what it asks for, but what it
    /// requires must be there.
    fn choice(&self, task: Option<&Task>) -> Choice {
        let mut choice = self.backend.clone();
        choice.image = self.image.as_ref().map(|image| image.text.clone());
        let Some(task) = task else {
            return choice;
        };
        let requires = &task.requires;
        let known = requires.backends.iter();
        let mut known = known.filter(|name| NAMES.contains(&name.as_str()));
        choice.name = choice.name.or_else(|| known.next().cloned());
        choice.require.extend(requires.guarantees.iter().cloned());
        choice
    }

    fn request_of(
        &self,
        home: &Home,
        folder: &Path,
        of: Option<(&Task, &Path)>,
    ) -> Result<RunRequest, Error> {
        let folder = self.folder.clone().unwrap_or_else(|| folder.to_owned());
        let real = open_folder(home, &folder)?;
        let task = of.map(|(task, _)| task);
        let backend = self.choice(task).choose(home);
        let backend = backend.map_err(SandboxError::Backend)?;
        let mut own = None;
        if let Some((task, file)) = of {
            fits(task, &real, &*backend)?;
            own = carried(home, task, file, &real)?;
        }
        let mut asked = self.asked(own, home, Some(real.path()))?;
        let mut checks = Vec::new();
        if let Some((task, file)) = of {
            asked.hide.extend(hidden(task, &real, file)?);
            let mut limits = bounds(&task.limits, file);
            limits.append(&mut asked.limits);
            asked.limits = limits;
            checks = task_checks(task, file);
        }
        let mut policy = asked.settle(home, real.path())?;
        for check in checks {
            policy.effective.review.add(check);
        }
        for check in &self.checks {
            policy.effective.review.add(check.clone());
        }
        let notes = policy.notes();
        let mut env = policy.env;
        env.extend(self.env.iter().cloned());
        let inside = self.same_path.then(|| std::fs::canonicalize(&folder));
        let inside = inside.transpose();
        let inside = inside.map_err(|_| Error::NoFolder(folder.clone()))?;
        let hard = of.is_some_and(|(task, _)| task.requires.hard_limits);
        Ok(RunRequest {
            backend,
            argv: self.words.clone(),
            name: None,
            limits: policy.limits,
            require_hard: self.require_hard || hard,
            env,
            view: View {
                inside,
                ignored: self.ignored,
            },
            policy: policy.effective,
            notes,
            terminal: None,
            input: None,
            brief: None,
            rounds: None,
            attempt: None,
            campaign: None,
            agent: None,
            program: self.program.clone(),
            folder,
        })
    }
}

/// What is asked of a task: also what its agent is told, and how often it is sent back. `file` is for
/// messages.
pub fn request(home: &Home, task: &Task, file: &Path, typed: &Typed) -> Result<RunRequest, Error> {
    let folder = match &typed.folder {
        // Nobody needs the folder of a document where another one is typed.
        Some(folder) => folder.clone(),
        None => source_folder(task)?,
    };
    let mut request = typed.request_of(home, &folder, Some((task, file)))?;
    let input = agent(home, task, typed, &mut request)?;
    // Whose words have the brief has nothing to read: not what the caller has on its own input.
    request.input = Some(input.unwrap_or_default().into_bytes());
    request.brief = Some(prompt(task).into_bytes());
    request.rounds = Some(Rounds {
        iterations: task.rounds.iterations,
        agent: task.rounds.agent,
    });
    Ok(request)
}

/// The policy that a task carries along.
fn carried(
    home: &Home,
    task: &Task,
    file: &Path,
    folder: &Folder,
) -> Result<Option<Effective>, Error> {
    let Some(own) = &task.policy else {
        return Ok(None);
    };
    let folder = Some(folder.path());
    let read = match (&own.name, &own.text) {
        (_, Some(text)) => policy::of_text(home, text, file, folder)?,
        (name, None) => policy::of_host(home, name.as_deref().map(Path::new), folder)?,
    };
    Ok(Some(read))
}

/// Its checks: each runs before and after.
fn task_checks(task: &Task, file: &Path) -> Vec<Line> {
    let from = Origin {
        file: file.display().to_string(),
        line: 0,
    };
    let texts = task.checks.baseline.iter().chain(&task.checks.last);
    let line = |text: &String| Line {
        text: text.clone(),
        from: from.clone(),
    };
    texts.map(line).collect()
}
