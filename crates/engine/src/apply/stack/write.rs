//! From a stack to commits and refs.

use std::path::PathBuf;

use serde::Serialize;

use super::super::branch::{author, committer, create_ref, free};
use super::super::objects::Objects;
use super::super::{Allowed, ApplyError, Person};
use super::Stack;
use crate::clock::now_us;
use crate::fail;

/// One commit that is to be made: the tree that it has, and what it says.
pub(crate) struct Wording {
    pub tree: String,
    pub message: String,
    /// Its own branch; the last one has one in any case.
    pub branch: Option<String>,
}

/// A commit that was made, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    pub tree: String,
    /// Absent where nothing was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The full name of the branch that is at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

impl Stack {
    /// Whether these branches can be made; gives their full names.
    pub fn free(&self, names: &[String]) -> Result<Vec<String>, ApplyError> {
        names
            .iter()
            .map(|name| free(&self.repository, name))
            .collect()
    }

    /// Who commits.
    pub fn author(&self, given: Option<&Person>) -> Result<Person, ApplyError> {
        author(&self.repository, given)
    }

    pub fn repository(&self) -> PathBuf {
        self.repository.top.clone()
    }

    /// Writes the objects of all that was taken, one commit each, and then the refs. Whoever dies
    /// before the refs leaves objects that nothing names; each ref is there whole or not at all.
    pub fn write(
        &self,
        commits: &[Wording],
        author: &Person,
        allowed: &Allowed<'_>,
    ) -> Result<Vec<Placed>, ApplyError> {
        let repository = &self.repository;
        let objects = Objects::open(&repository.common_dir, repository.hash)?;
        for blob in self.blobs.values() {
            objects.write("blob", blob)?;
        }
        for body in self.trees.values() {
            objects.write("tree", body)?;
        }
        fail::point("merge:objects");
        let seconds = now_us().div_euclid(1_000_000);
        let committer = committer(repository).unwrap_or_else(|| author.clone());
        let mut parent = self.commit.clone();
        let mut placed = Vec::new();
        for wording in commits {
            let body = format!(
                "tree {}\nparent {parent}\nauthor {}\ncommitter {}\n\n{}",
                wording.tree,
                author.at(seconds),
                committer.at(seconds),
                wording.message
            );
            parent = objects.write("commit", body.as_bytes())?;
            placed.push(Placed {
                tree: wording.tree.clone(),
                commit: Some(parent.clone()),
                branch: wording.branch.clone(),
            });
        }
        objects.sync()?;
        fail::point("merge:synced");
        // Somebody may have rejected one meanwhile; what was written has no name yet.
        allowed()?;
        for own in &placed {
            if let (Some(full), Some(commit)) = (&own.branch, &own.commit) {
                create_ref(repository, full, commit, &committer.at(seconds))?;
                fail::point("merge:named");
            }
        }
        Ok(placed)
    }
}
