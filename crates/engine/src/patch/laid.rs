//! Files that lie over a tree: what a path holds instead of what the tree has there.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_model::bundle::sha256_hex;
use ringfence_model::changes::FileMode;

/// A file or a link with all that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaidFile {
    pub mode: FileMode,
    /// Git's id of the content.
    pub oid: String,
    pub content: Arc<[u8]>,
}

/// By path from the top of the repository; `None`: what the tree has there is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Laid(pub BTreeMap<Vec<u8>, Option<LaidFile>>);

impl Laid {
    /// What names these files; nothing has no name.
    pub fn name(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut text = Vec::new();
        for (path, file) in &self.0 {
            text.extend_from_slice(&(path.len() as u64).to_le_bytes());
            text.extend_from_slice(path);
            if let Some(file) = file {
                text.extend_from_slice(format!("{:?} {}", file.mode, file.oid).as_bytes());
            }
            text.push(b'\n');
        }
        sha256_hex(&text)
    }

    /// Those below a folder, by their paths there.
    pub fn below(&self, prefix: &[u8]) -> BTreeMap<&[u8], Option<(FileMode, &[u8])>> {
        let inside = |path: &'_ Vec<u8>| -> Option<usize> {
            match prefix {
                b"" => Some(0),
                _ => path
                    .strip_prefix(prefix)?
                    .starts_with(b"/")
                    .then_some(prefix.len() + 1),
            }
        };
        let mut files = BTreeMap::new();
        for (path, file) in &self.0 {
            if let Some(from) = inside(path) {
                let file = file.as_ref().map(|file| (file.mode, &file.content[..]));
                files.insert(&path[from..], file);
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Option<LaidFile> {
        Some(LaidFile {
            mode: FileMode::Regular,
            oid: text.to_owned(),
            content: Arc::from(text.as_bytes()),
        })
    }

    #[test]
    fn names_differ_and_a_folder_has_its_own_part() {
        let mut laid = Laid::default();
        assert_eq!(laid.name(), "");
        laid.0.insert(b"sub/a".to_vec(), file("x"));
        let one = laid.name();
        laid.0.insert(b"subway".to_vec(), None);
        assert_ne!(laid.name(), one);
        let below = laid.below(b"sub");
        assert_eq!(below.keys().collect::<Vec<_>>(), [&&b"a"[..]]);
        assert_eq!(laid.below(b"").len(), 2);
    }
}
