//! Git's name for a content: the hash of `blob <length>\0` and the bytes.

use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use sha1::Digest as _;

/// The id that stands for "no content".
pub(super) fn zero(hash: ObjectHash) -> String {
    "0".repeat(hash.bytes() * 2)
}

/// A blob's id in the making. The length comes first, so it must be known beforehand.
pub(crate) enum BlobHasher {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl BlobHasher {
    pub fn new(hash: ObjectHash, length: u64) -> Self {
        Self::of_kind("blob", hash, length)
    }

    /// The same for another kind of object: `tree`, `commit`.
    pub fn of_kind(kind: &str, hash: ObjectHash, length: u64) -> Self {
        let mut hasher = match hash {
            ObjectHash::Sha1 => Self::Sha1(sha1::Sha1::new()),
            ObjectHash::Sha256 => Self::Sha256(sha2::Sha256::new()),
        };
        hasher.update(format!("{kind} {length}\0").as_bytes());
        hasher
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub fn finish(self) -> String {
        hex(&self.finish_bytes())
    }

    pub fn finish_bytes(self) -> Vec<u8> {
        match self {
            Self::Sha1(hasher) => hasher.finalize().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
        }
    }
}

/// The id of bytes that are at hand.
pub(super) fn blob(hash: ObjectHash, bytes: &[u8]) -> String {
    let mut hasher = BlobHasher::new(hash, bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_gits() {
        let sha256 = "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813";
        for (hash, bytes, oid) in [
            (
                ObjectHash::Sha1,
                &b""[..],
                "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
            ),
            (
                ObjectHash::Sha1,
                b"hello\n",
                "ce013625030ba8dba906f756967f9e9ca394464a",
            ),
            (ObjectHash::Sha256, b"", sha256),
        ] {
            assert_eq!(blob(hash, bytes), oid);
        }
    }
}
