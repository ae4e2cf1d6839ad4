//! What is beside a plan: its brief and its policy.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ringfence_model::plan::Plan;
use ringfence_model::policy::document::{Document, MAX_BYTES, Source};
use ringfence_model::policy::{Line, built_in, preset};
use ringfence_model::task::{self, Brief, MAX_BRIEF};
use rustix::fs::{CWD, Mode, OFlags};

use super::CampaignError;
use crate::git::open_beneath;
use crate::policy::PolicyError;

/// The directory of a plan.
#[derive(Debug)]
pub(super) struct Beside {
    /// Where the plan is.
    file: PathBuf,
    /// As it was typed.
    typed: PathBuf,
    root: OwnedFd,
    bytes: Vec<u8>,
}

impl Beside {
    /// Opens the directory of a plan, and reads the plan.
    pub fn open(typed: &Path) -> Result<Self, CampaignError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => CampaignError::NoFile(typed.to_owned()),
            _ => CampaignError::Read {
                path: typed.to_owned(),
                source,
            },
        };
        let file = typed.canonicalize().map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(CWD, &file, flags, Mode::empty());
        let open = open.map_err(|errno| failed(errno.into()))?;
        let bytes = read(File::from(open), MAX_BYTES).map_err(failed)?;
        let bytes = bytes.ok_or_else(|| CampaignError::NotAFile(typed.to_owned()))?;
        let place = file.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(place, flags, Mode::empty());
        let root = root.map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            typed: typed.to_owned(),
            file,
            root,
            bytes,
        })
    }

    pub fn plan(&self) -> Result<Plan, CampaignError> {
        Plan::parse(&self.bytes, &self.typed.to_string_lossy()).map_err(CampaignError::Plan)
    }

    /// The plan as it is written.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The plan's real path.
    pub fn file(&self) -> PathBuf {
        self.file.clone()
    }

    /// Where something that the plan names is.
    pub fn path(&self, name: &str) -> PathBuf {
        let place = self.file.parent().unwrap_or(Path::new("/"));
        // `./x` is `x`.
        place.join(name).components().collect()
    }

    /// HOSTILE: the plan may have come with the repository, and so may what it names: no link is
    /// followed, so that no file from elsewhere is shown to an agent.
    fn beneath(&self, name: &str, most: usize) -> Result<Option<Vec<u8>>, CampaignError> {
        let path = self.path(name);
        let failed = |source: io::Error| CampaignError::Read {
            path: path.clone(),
            source,
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_beneath(&self.root, Path::new(name), flags) {
            Ok(open) => {
                let bytes = read(File::from(open), most).map_err(failed)?;
                let bytes = bytes.ok_or_else(|| CampaignError::NotAFile(path.clone()))?;
                Ok(Some(bytes))
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
            Err(rustix::io::Errno::LOOP) => Err(CampaignError::NotAFile(path)),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    pub fn brief(&self, plan: &Plan) -> Result<Brief, CampaignError> {
        let name = plan.brief.text.clone();
        let Some(bytes) = self.beneath(&name, MAX_BRIEF)? else {
            let path = self.path(&name);
            return Err(CampaignError::NoBrief { name, path });
        };
        if bytes.len() > MAX_BRIEF {
            return Err(CampaignError::BriefTooLong(name));
        }
        match String::from_utf8(bytes) {
            Ok(text) if !text.trim().is_empty() && !text.contains('\0') => Ok(Brief {
                name,
                sha256: task::sha256(text.as_bytes()),
                text,
            }),
            _ => Err(CampaignError::BriefNotText(name)),
        }
    }

    /// The policy as tasks carry it.
    pub fn policy(&self, plan: &Plan) -> Result<Option<task::Policy>, crate::error::Error> {
        let Some(line) = &plan.run.policy else {
            return Ok(None);
        };
        if built_in::document(&line.text).is_some() {
            let name = Some(line.text.clone());
            return Ok(Some(task::Policy { name, text: None }));
        }
        let path = self.path(&line.text);
        let bytes = self.beneath(&line.text, MAX_BYTES)?;
        let bytes = bytes.ok_or(PolicyError::NoFile(path))?;
        let home = std::env::home_dir();
        let source = Source {
            file: &line.text,
            home: home.as_deref(),
        };
        let document = Document::parse(&bytes, source).map_err(PolicyError::Document)?;
        let named = |line: &Line| {
            built_in::document(&line.text).is_some() || line.text.starts_with(preset::PREFIX)
        };
        if !document.extends.iter().all(named) {
            return Err(CampaignError::PolicyStandsOnFile(line.text.clone()).into());
        }
        let text = String::from_utf8(bytes).ok();
        Ok(Some(task::Policy { name: None, text }))
    }

    /// What names the policy for whoever reads policies.
    pub fn policy_path(&self, line: &Line) -> PathBuf {
        match built_in::document(&line.text) {
            Some(_) => PathBuf::from(&line.text),
            None => self.path(&line.text),
        }
    }
}

/// A regular file up to a bound and a byte; `None` for what is none.
fn read(file: File, most: usize) -> io::Result<Option<Vec<u8>>> {
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
