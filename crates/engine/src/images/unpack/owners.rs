//! Whose the files of a layer are on the disk.

/// Who owns what is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::images) enum Owners {
    /// Whoever the tar says: only root can.
    AsInTar,
    /// Who unpacks.
    Caller,
}

impl Owners {
    pub fn of_this_process() -> Self {
        if rustix::process::geteuid().is_root() {
            Self::AsInTar
        } else {
            Self::Caller
        }
    }
}
