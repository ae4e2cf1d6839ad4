//! Caches: what setups of one folder left for the sandboxes of that folder.
//!
//! Each promotion is a directory of its own, numbered, made of the one before and of what the setup
//! wrote. A sandbox has one of them below a private layer, so that what it writes is seen by nobody
//! else; nothing but a setup that succeeded is ever promoted.
//!
//! HOSTILE: a setup runs what a registry sent. Where a file says by its name or by the client's index
//! what it must hold, one that does not is left out; extracted copies of archives are left out as well,
//! because nobody checks them again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use ringfence_model::environment::{CacheKind, Checked};
use ringfence_model::hex;
use sha2::{Digest, Sha256, Sha512};

use super::EnvironmentError;
use super::manage::remove_directory;
use crate::changes::descent::{Descent, Step, push_name};
use crate::changes::handle::{self, Access, Kind};
use crate::changes::remove_tree;
use crate::home::Home;
use crate::layers;
use crate::lock::FileLock;

/// BOUND: an index file of one crate has a line for each version.
const INDEX_BYTES: u64 = 16 << 20;

/// The newest shared part of a cache, and its number.
pub(super) fn latest(
    home: &Home,
    kind: CacheKind,
    scope: &str,
) -> Result<Option<(u64, PathBuf)>, EnvironmentError> {
    let place = home.cache(kind, scope);
    let newest = generations(&place)?.into_iter().next_back();
    Ok(newest.map(|number| (number, place.join(number.to_string()))))
}

/// Those that are whole, in order.
pub(super) fn generations(place: &Path) -> Result<BTreeSet<u64>, EnvironmentError> {
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(source) => return Err(make_error("list", place, source)),
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Adds what a setup wrote to what is shared. Says what was left out.
pub(super) fn promote(
    home: &Home,
    kind: CacheKind,
    scope: &str,
    layer: &Path,
) -> Result<Vec<String>, EnvironmentError> {
    let open = |path: &Path| File::open(path).map_err(|source| make_error("open", path, source));
    let upper = open(layer)?;
    let place = home.cache(kind, scope);
    std::fs::create_dir_all(&place).map_err(|source| make_error("make", &place, source))?;
    let lock = place.with_extension("lock");
    let _lock = FileLock::wait(&lock, || {})?;
    let before = latest(home, kind, scope)?;
    let number = before.as_ref().map_or(1, |(number, _)| number + 1);
    let partial = format!("{number}.partial");
    remove_directory(&place, &partial)?;
    remove_directory(&place, &format!("{partial}{}", layers::YARD))?;
    let below = before.map(|(_, path)| open(&path)).transpose()?;
    let mut stack: Vec<BorrowedFd<'_>> = vec![upper.as_fd()];
    stack.extend(below.iter().map(File::as_fd));
    let parent = open(&place)?;
    layers::merge(&stack, None, parent.as_fd(), partial.as_bytes())?;
    let made = place.join(&partial);
    // All of it: what vouches for a file may have come with an earlier setup.
    let checked = kind.row().checked;
    let left_out = check(open(&made)?.as_fd(), checked).map_err(EnvironmentError::Read)?;
    layers::sync(open(&made)?.as_fd())?;
    let whole = place.join(number.to_string());
    std::fs::rename(&made, &whole).map_err(|source| make_error("keep", &whole, source))?;
    Ok(match left_out {
        0 => Vec::new(),
        count => vec![format!(
            "{count} files of the {} cache are not what they say and were left out",
            kind.row().name
        )],
    })
}

/// Removes what is not what it says. Gives how many files that were.
fn check(layer: BorrowedFd<'_>, checked: Checked) -> io::Result<u64> {
    if checked == Checked::Opaque {
        return Ok(0);
    }
    if checked == Checked::CargoRegistry {
        remove_tree(layer, b"src").map_err(io::Error::other)?;
    }
    let (mut descent, _) = Descent::new(layer, Access::Take)?;
    let mut path = Vec::new();
    let mut ends = Vec::new();
    let mut left_out = look(&mut descent, layer, &path, checked)?;
    while let Some(step) = descent.advance()? {
        match step {
            Step::Entered(name, _) => {
                ends.push(push_name(&mut path, &name));
                left_out += look(&mut descent, layer, &path, checked)?;
            }
            Step::Left => path.truncate(ends.pop().unwrap_or(0)),
            Step::Closed(_, error) => return Err(error),
        }
    }
    Ok(left_out)
}

fn look(
    descent: &mut Descent,
    layer: BorrowedFd<'_>,
    directory: &[u8],
    checked: Checked,
) -> io::Result<u64> {
    let mut left_out = 0;
    for name in handle::names(descent.here(), usize::MAX)? {
        let Some(meta) = handle::look(descent.here(), &name)? else {
            continue;
        };
        if meta.kind == Kind::Directory {
            descent.queue(name);
            continue;
        }
        let claims = match checked {
            Checked::Cacache => directory.starts_with(b"_cacache/content-v2/"),
            Checked::CargoRegistry => directory.starts_with(b"cache/"),
            Checked::Opaque => false,
        };
        // HOSTILE: a link in the place of a directory would lead around what is checked here.
        let is_file = meta.kind == Kind::File;
        if !claims && is_file {
            continue;
        }
        let file = if is_file {
            handle::open_file(descent.here(), &name, Access::Take).ok()
        } else {
            None
        };
        let true_to_name = match file {
            None => false,
            // HOSTILE: no client leaves holes, and who reads one of terabytes reads for days.
            Some(file) if file.meta.blocks * 512 < file.meta.size => false,
            Some(file) if checked == Checked::Cacache => is_cacache(directory, &name, file.file)?,
            Some(file) => is_crate(layer, directory, &name, file.file)?,
        };
        if !true_to_name {
            rustix::fs::unlinkat(descent.here(), &*name, rustix::fs::AtFlags::empty())?;
            left_out += 1;
        }
    }
    Ok(left_out)
}

/// `_cacache/content-v2/sha512/ab/cd/REST`: the path is the hash.
fn is_cacache(directory: &[u8], name: &[u8], file: File) -> io::Result<bool> {
    let text = String::from_utf8_lossy(directory);
    let parts: Vec<&str> = text.split('/').collect();
    let [_, _, algorithm, first, second] = parts[..] else {
        return Ok(false);
    };
    let hash = match algorithm {
        "sha512" => hash::<Sha512>(file)?,
        "sha256" => hash::<Sha256>(file)?,
        // Nobody can vouch for what older hashes name.
        _ => return Ok(false),
    };
    let named = [first.as_bytes(), second.as_bytes(), name].concat();
    Ok(hash.as_bytes() == named)
}

/// `cache/INDEX/NAME-VERSION.crate`: the index beside it has its checksum.
fn is_crate(layer: BorrowedFd<'_>, directory: &[u8], name: &[u8], file: File) -> io::Result<bool> {
    let registry = directory.strip_prefix(b"cache/").unwrap_or_default();
    let Some(stem) = std::str::from_utf8(name)
        .ok()
        .and_then(|name| name.strip_suffix(".crate"))
    else {
        return Ok(false);
    };
    let checksum = hash::<Sha256>(file)?;
    // Versions may have dashes: each place where one may begin is tried.
    for (dash, _) in stem.match_indices('-') {
        let crate_name = stem[..dash].to_ascii_lowercase();
        if crate_name.is_empty() || !crate_name.is_ascii() {
            continue;
        }
        let shard = match crate_name.len() {
            1 => "1".to_owned(),
            2 => "2".to_owned(),
            3 => format!("3/{}", &crate_name[..1]),
            _ => format!("{}/{}", &crate_name[..2], &crate_name[2..4]),
        };
        let index = [
            b"index/",
            registry,
            format!("/.cache/{shard}/{crate_name}").as_bytes(),
        ]
        .concat();
        let Ok((parent, last)) = handle::hold_parent(layer, &index, Access::AsItIs) else {
            continue;
        };
        let Ok(opened) = handle::open_file(parent.as_fd(), last, Access::AsItIs) else {
            continue;
        };
        let mut text = Vec::new();
        opened.file.take(INDEX_BYTES).read_to_end(&mut text)?;
        let wanted = format!("\"{checksum}\"");
        if text
            .windows(wanted.len())
            .any(|part| part == wanted.as_bytes())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn hash<D: Digest>(mut file: File) -> io::Result<String> {
    let mut hash = D::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn make_error(what: &'static str, path: &Path, source: io::Error) -> EnvironmentError {
    EnvironmentError::Make {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(place: &Path, path: &str, content: &[u8]) {
        let path = place.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, content).expect("a file");
    }

    fn checked(place: &Path, how: Checked) -> u64 {
        let opened = File::open(place).expect("a directory");
        check(opened.as_fd(), how).expect("checked")
    }

    #[test]
    fn packages_of_npm_are_what_their_path_says() {
        let place = tempfile::tempdir().expect("a place");
        let hash = hex(&Sha512::digest(b"good"));
        let path = |name: &str| {
            format!(
                "_cacache/content-v2/sha512/{}/{}/{name}",
                &hash[..2],
                &hash[2..4]
            )
        };
        let (good, bad) = (path(&hash[4..]), path("00"));
        write(place.path(), &good, b"good");
        write(place.path(), &bad, b"bad");
        write(place.path(), "_cacache/content-v2/sha1/ab/cd/ef", b"old");
        write(place.path(), "_cacache/index-v5/x", b"opaque");
        let hollow = path("11");
        write(place.path(), &hollow, b"");
        let file = File::options()
            .write(true)
            .open(place.path().join(&hollow))
            .expect("a file");
        file.set_len(1 << 42).expect("a hole");
        assert_eq!(checked(place.path(), Checked::Cacache), 3);
        assert!(place.path().join(good).exists() && !place.path().join(bad).exists());
        assert!(place.path().join("_cacache/index-v5/x").exists());
    }

    #[test]
    fn crates_are_what_the_index_says() {
        let place = tempfile::tempdir().expect("a place");
        let index = format!("x\0{{\"cksum\":\"{}\"}}\0", hex(&Sha256::digest(b"good")));
        write(place.path(), "index/r/.cache/a-/b-/a-b-c", index.as_bytes());
        write(place.path(), "cache/r/a-b-c-1.0.0-rc-1.crate", b"good");
        write(place.path(), "cache/r/a-b-c-1.0.1.crate", b"bad");
        write(place.path(), "cache/r/unknown-1.0.0.crate", b"good");
        write(place.path(), "src/r/a-b-c-1.0.0/build.rs", b"changed");
        assert_eq!(checked(place.path(), Checked::CargoRegistry), 2);
        let left: Vec<_> = fs::read_dir(place.path().join("cache/r"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(left, ["a-b-c-1.0.0-rc-1.crate"]);
        assert!(!place.path().join("src").exists());
    }

    #[test]
    fn no_link_leads_around_what_is_checked() {
        for (how, link, bad) in [
            (Checked::CargoRegistry, "cache", "aside/r/bad-1.0.0.crate"),
            (Checked::CargoRegistry, "cache/r", "aside/bad-1.0.0.crate"),
            (
                Checked::Cacache,
                "_cacache",
                "aside/content-v2/sha512/00/00/00",
            ),
            (
                Checked::Cacache,
                "_cacache/content-v2/sha512",
                "aside/00/00/00",
            ),
        ] {
            let place = tempfile::tempdir().expect("a place");
            write(place.path(), bad, b"bad");
            let link = place.path().join(link);
            fs::create_dir_all(link.parent().expect("a parent")).expect("directories");
            std::os::unix::fs::symlink(place.path().join("aside"), &link).expect("a link");
            assert_eq!(checked(place.path(), how), 1, "{link:?}");
            assert!(link.symlink_metadata().is_err(), "{link:?} is left");
        }
    }
}
