//! Writes an agent's settings into its home, through the guest and as the agent, before it starts.
//!
//! HOSTILE: a home can come from an environment, and its setup may have left links there. No directory
//! on the way is a link; what is at the end is replaced, never followed.

use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::wire::{EntryType, Parents, Reply, Request, WriteHow};
use rustix::io::Errno;

use super::{AgentError, Inside};
use crate::client::{Client, ClientError};
use crate::error::Error;

/// Where it is inside.
pub(super) const HOME: &str = "/home/agent";

/// A file of an agent's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeFile {
    /// Relative to the home.
    pub path: PathBuf,
    pub content: Vec<u8>,
}

/// Writes the files. Nothing of an agent runs yet.
pub(crate) fn stage(client: &mut Client, agent: Option<&Inside>) -> Result<(), Error> {
    for file in agent.iter().flat_map(|agent| &agent.home) {
        let mut place = PathBuf::from(HOME);
        for name in file.path.parent().into_iter().flat_map(Path::iter) {
            place.push(name);
            directory(client, &place)?;
        }
        place.push(file.path.file_name().unwrap_or_default());
        let stream = client.send(&Request::WriteFile {
            path: text(&place),
            mode: 0o600,
            how: WriteHow::Replace,
        })?;
        client.input(stream, &file.content)?;
        client.end_input(stream)?;
        client.answer_to(stream)?;
    }
    Ok(())
}

/// Makes a directory that is not there.
fn directory(client: &mut Client, place: &Path) -> Result<(), Error> {
    let stream = client.send(&Request::Stat { path: text(place) })?;
    match client.answer_to(stream) {
        Ok(Reply::Entry(entry)) if entry.what == EntryType::Directory => Ok(()),
        Ok(_) => Err(AgentError::HomeOccupied(place.to_owned()).into()),
        Err(ClientError::Failed(failure)) if failure.errno == Errno::NOENT.raw_os_error() => {
            let stream = client.send(&Request::MakeDirectory {
                path: text(place),
                parents: Parents::Existing,
            })?;
            client.answer_to(stream)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn text(path: &Path) -> ByteText {
    ByteText::from(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}
