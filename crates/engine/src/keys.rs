//! The key of this installation, and the keys of others that it trusts.
//!
//! ```text
//! keys/                0700
//! ├── signing.pem      0600, ed25519, PKCS #8; made on first use, whole or not at all
//! └── trusted/NAME.pem public keys of others
//! ```
//!
//! INVARIANT: the secret is in its file and in memory that is wiped. Nothing here prints it, and no
//! error holds it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _};
use ed25519_dalek::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use ringfence_model::bundle::sha256_hex;
use rustix::fs::{Mode, OFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::durable::{self, DurableError, Existing};
use crate::home::Home;

/// BOUND: a key in PEM has some 150 bytes.
const KEY_BYTES: u64 = 4096;
/// BOUND: names of trusted keys are typed; thousands of keys are a mistake.
const NAME_BYTES: usize = 64;
const TRUSTED: usize = 10_000;

const SIGNING: &str = "signing.pem";
const SUFFIX: &str = ".pem";

/// What is wrong with a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the key `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make the key `{}`", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: DurableError,
    },
    #[error("cannot draw a random key")]
    Draw(#[source] io::Error),
    #[error("`{}` belongs to uid {owner}, not to uid {ours}", path.display())]
    Foreign {
        path: PathBuf,
        owner: u32,
        ours: u32,
    },
    #[error("`{}` can be read by others (mode {mode:04o})", path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error("`{}` is not what it should be: a key is a plain file in a directory", path.display())]
    Special { path: PathBuf },
    #[error("`{}` does not hold an ed25519 key in PEM", path.display())]
    Parse { path: PathBuf },
    #[error("`{0}` cannot be the name of a key: letters, digits, `-`, `_` and `.`")]
    BadName(String),
    #[error("there is a key `{0}` already, and it is another one")]
    NameTaken(String),
    #[error("no key `{0}` is trusted")]
    NotTrusted(String),
    #[error("cannot remove the key `{}`", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A key that can sign.
pub struct OwnKey {
    secret: SigningKey,
}

impl std::fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnKey({})", self.public().id())
    }
}

impl OwnKey {
    pub fn public(&self) -> PublicKey {
        PublicKey(self.secret.verifying_key())
    }

    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.secret.sign(bytes).to_bytes()
    }
}

/// A key that can check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads a PEM; `None` where it is none of ed25519.
    pub fn from_pem(text: &str) -> Option<Self> {
        let key = VerifyingKey::from_public_key_pem(text.trim()).ok()?;
        // A key of small order "signs" anything.
        (!key.is_weak()).then_some(Self(key))
    }

    /// PEM of its `SubjectPublicKeyInfo`.
    pub fn pem(&self) -> String {
        let pem = self.0.to_public_key_pem(LineEnding::LF);
        pem.expect("32 bytes always encode")
    }

    /// SHA-256 (hex) of its `SubjectPublicKeyInfo` in DER.
    pub fn id(&self) -> String {
        let der = self.0.to_public_key_der().expect("32 bytes always encode");
        sha256_hex(der.as_bytes())
    }

    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else {
            return false;
        };
        self.0.verify_strict(bytes, &signature).is_ok()
    }
}

/// A key of somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    pub name: String,
    pub key: PublicKey,
}

/// The key of this installation, made where there is none.
pub fn own(home: &Home) -> Result<OwnKey, KeyError> {
    check_directory(&home.keys())?;
    match read_own(home)? {
        Some(key) => Ok(key),
        None => make_own(home),
    }
}

/// The same, `None` where there is none.
fn read_own(home: &Home) -> Result<Option<OwnKey>, KeyError> {
    let path = home.keys().join(SIGNING);
    let Some((file, text)) = read_key(&path)? else {
        return Ok(None);
    };
    check_private(&path, &file)?;
    let text = zeroize::Zeroizing::new(text);
    let secret =
        SigningKey::from_pkcs8_pem(&text).map_err(|_| KeyError::Parse { path: path.clone() })?;
    Ok(Some(OwnKey { secret }))
}

fn make_own(home: &Home) -> Result<OwnKey, KeyError> {
    let mut seed = zeroize::Zeroizing::new([0u8; 32]);
    let mut filled = 0;
    while filled < seed.len() {
        filled += getrandom(&mut seed[filled..], GetRandomFlags::empty())
            .map_err(|errno| KeyError::Draw(errno.into()))?;
    }
    let secret = SigningKey::from_bytes(&seed);
    let pem = secret.to_pkcs8_pem(LineEnding::LF);
    let pem = pem.expect("32 bytes always encode");
    let path = home.keys().join(SIGNING);
    match durable::write_synced(&path, pem.as_bytes(), Existing::Refuse) {
        Ok(()) => Ok(OwnKey { secret }),
        // Somebody else was first: theirs is the one.
        Err(DurableError::Publish { source, .. })
            if source.kind() == io::ErrorKind::AlreadyExists =>
        {
            read_own(home)?.ok_or(KeyError::Parse { path })
        }
        Err(source) => Err(KeyError::Make { path, source }),
    }
}

/// The own key, without making one.
pub fn own_public(home: &Home) -> Result<Option<PublicKey>, KeyError> {
    check_directory(&home.keys())?;
    Ok(read_own(home)?.map(|key| key.public()))
}

/// The own key and those that were named, with what each is called.
pub fn all_trusted(home: &Home) -> Result<Vec<(String, PublicKey)>, KeyError> {
    let own = own_public(home)?;
    let own = own.map(|key| ("the key of this installation".to_owned(), key));
    let others = trusted(home)?.into_iter();
    let others = others.map(|other| (other.name, other.key));
    Ok(own.into_iter().chain(others).collect())
}

/// The keys of others, by name.
pub fn trusted(home: &Home) -> Result<Vec<Trusted>, KeyError> {
    let directory = trusted_directory(home);
    let failed = |source| KeyError::Read {
        path: directory.clone(),
        source,
    };
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut found = Vec::new();
    for entry in entries.take(TRUSTED) {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        // What a killed process may have left has another ending.
        let Some(name) = name.and_then(|name| name.strip_suffix(SUFFIX)) else {
            continue;
        };
        if !name.starts_with(durable::TEMPORARY_PREFIX) {
            let key = read_public(&path)?;
            let name = name.to_owned();
            found.push(Trusted { name, key });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Trusts a key by a name. The same key under the same name is no news.
pub fn trust(home: &Home, name: &str, key: &PublicKey) -> Result<(), KeyError> {
    let path = trusted_path(home, name)?;
    let directory = trusted_directory(home);
    check_directory(&home.keys())?;
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(KeyError::Read {
                path: directory,
                source,
            });
        }
        _ => {}
    }
    match durable::write_synced(&path, key.pem().as_bytes(), Existing::Refuse) {
        Ok(()) => Ok(()),
        Err(DurableError::Publish { source, .. })
            if source.kind() == io::ErrorKind::AlreadyExists =>
        {
            if read_public(&path)? == *key {
                Ok(())
            } else {
                Err(KeyError::NameTaken(name.to_owned()))
            }
        }
        Err(source) => Err(KeyError::Make { path, source }),
    }
}

/// Trusts a key no more.
pub fn untrust(home: &Home, name: &str) -> Result<(), KeyError> {
    let path = trusted_path(home, name)?;
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(KeyError::NotTrusted(name.to_owned()))
        }
        Err(source) => Err(KeyError::Remove { path, source }),
    }
}

/// A public key in a file.
pub fn read_public(path: &Path) -> Result<PublicKey, KeyError> {
    let missing = || KeyError::Read {
        path: path.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    };
    let (_, text) = read_key(path)?.ok_or_else(missing)?;
    PublicKey::from_pem(&text).ok_or_else(|| KeyError::Parse {
        path: path.to_owned(),
    })
}

fn trusted_directory(home: &Home) -> PathBuf {
    home.keys().join("trusted")
}

fn trusted_path(home: &Home, name: &str) -> Result<PathBuf, KeyError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(plain)
        && name.len() <= NAME_BYTES;
    if good {
        Ok(trusted_directory(home).join(format!("{name}{SUFFIX}")))
    } else {
        Err(KeyError::BadName(name.chars().take(NAME_BYTES).collect()))
    }
}

/// A small plain file, opened without following a link or waiting for anybody.
fn read_key(path: &Path) -> Result<Option<(File, String)>, KeyError> {
    let failed = |source| KeyError::Read {
        path: path.to_owned(),
        source,
    };
    let special = || KeyError::Special {
        path: path.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Err(special()),
        Err(errno) => return Err(failed(errno.into())),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(special());
    }
    let mut text = Vec::new();
    let read = (&file).take(KEY_BYTES).read_to_end(&mut text);
    read.map_err(failed)?;
    match String::from_utf8(text) {
        Ok(text) => Ok(Some((file, text))),
        Err(_) => Err(KeyError::Parse {
            path: path.to_owned(),
        }),
    }
}

fn check_directory(path: &Path) -> Result<(), KeyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => check_private(path, &File::from(fd)),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => Err(KeyError::Special {
            path: path.to_owned(),
        }),
        Err(errno) => Err(KeyError::Read {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// Ours, and nobody else can read or write it.
fn check_private(path: &Path, file: &File) -> Result<(), KeyError> {
    let path = path.to_owned();
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(source) => return Err(KeyError::Read { path, source }),
    };
    let ours = rustix::process::geteuid().as_raw();
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != ours {
        return Err(KeyError::Foreign { path, owner, ours });
    }
    if mode & 0o077 != 0 {
        return Err(KeyError::Readable { path, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        (directory, home)
    }

    #[test]
    fn the_first_ones_agree_on_one_key() {
        let (_directory, home) = home();
        let ids: Vec<String> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| own(&home).unwrap().public().id()))
                .collect();
            makers.into_iter().map(|m| m.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let path = home.keys().join(SIGNING);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&home.keys()), mode(&path)), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(home.keys()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_signed_is_verified_and_nothing_else() {
        let (_directory, home) = home();
        let key = own(&home).unwrap();
        let signature = key.sign(b"said");
        let public = PublicKey::from_pem(&key.public().pem()).unwrap();
        assert!(public.verifies(b"said", &signature));
        assert!(!public.verifies(b"sais", &signature));
        for at in 0..64 {
            let mut changed = signature;
            changed[at] ^= 1;
            assert!(!public.verifies(b"said", &changed), "byte {at}");
        }
        assert!(!public.verifies(b"said", &signature[..63]));
        // A key of small order: the neutral element.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let weak = PublicKey(VerifyingKey::from_bytes(&neutral).unwrap());
        assert_eq!(PublicKey::from_pem(&weak.pem()), None);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let (_directory, home) = home();
        own(&home).unwrap();
        let path = home.keys().join(SIGNING);
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        for mode in [0o640, 0o604, 0o660, 0o601] {
            set(&path, mode);
            assert!(matches!(own(&home), Err(KeyError::Readable { .. })));
        }
        set(&path, 0o600);
        set(&home.keys(), 0o750);
        assert!(matches!(own(&home), Err(KeyError::Readable { .. })));
        set(&home.keys(), 0o700);
        own(&home).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(4242), None).unwrap();
            let error = own(&home).unwrap_err();
            assert!(error.to_string().contains("uid 4242"), "{error}");
            chown(&path, Some(0), None).unwrap();
        }
        let away = home.root().join("away.pem");
        std::fs::rename(&path, &away).unwrap();
        symlink(&away, &path).unwrap();
        assert!(matches!(own(&home), Err(KeyError::Special { .. })));
        std::fs::remove_file(&path).unwrap();
        for text in ["", "secret\n", "-----BEGIN PRIVATE KEY-----\n"] {
            std::fs::write(&path, text).unwrap();
            set(&path, 0o600);
            let error = own(&home).unwrap_err();
            assert!(matches!(error, KeyError::Parse { .. }), "{error}");
        }
    }

    #[test]
    fn the_secret_is_in_no_text_of_ours() {
        let (_directory, home) = home();
        let key = own(&home).unwrap();
        let file = std::fs::read_to_string(home.keys().join(SIGNING)).unwrap();
        let secret = file.lines().nth(1).unwrap();
        let shown = format!("{key:?} {} {}", key.public().pem(), key.public().id());
        assert!(!shown.contains(&secret[20..]), "{shown}");
    }

    #[test]
    fn others_are_trusted_by_name() {
        let (_directory, home) = home();
        let (_other, other) = self::home();
        let (one, two) = (own(&home).unwrap().public(), own(&other).unwrap().public());
        trust(&home, "ci", &two).unwrap();
        trust(&home, "ci", &two).unwrap();
        assert!(matches!(
            trust(&home, "ci", &one),
            Err(KeyError::NameTaken(_))
        ));
        assert_eq!(trusted(&home).unwrap()[0].key, two);
        for name in ["", ".x", "a/b", "../x", "a\nb", "ä", &"x".repeat(65)] {
            let error = trust(&home, name, &two).unwrap_err();
            assert!(matches!(error, KeyError::BadName(_)), "{name}");
        }
        untrust(&home, "ci").unwrap();
        assert!(matches!(untrust(&home, "ci"), Err(KeyError::NotTrusted(_))));
        assert_eq!(trusted(&home).unwrap(), []);
    }
}
