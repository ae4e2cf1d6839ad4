//! Trees that travel, and parcels that are none.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

fn packed(root: &Path, known: &[u8]) -> Vec<u8> {
    let mut parcel = Vec::new();
    pack(root, &mut &known[..], &mut parcel).expect("packed");
    parcel
}

fn unpacked(root: &Path, parcel: &[u8]) -> io::Result<Vec<u8>> {
    let mut known = Vec::new();
    unpack(root, &mut &parcel[..], &mut known)?;
    Ok(known)
}

/// Path, type and mode, content or target.
fn shown(root: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut all = Vec::new();
    walk(root, Manner::Still, &mut |found| {
        let (path, stat) = (found.path, &found.stat);
        let full = root.join(OsStr::from_bytes(path));
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size > 1 << 30 => {
                let mut middle = [0; 13];
                fs::File::open(&full)?.read_at(&mut middle, 1 << 39)?;
                middle.to_vec()
            }
            FileType::RegularFile => fs::read(&full).unwrap_or_default(),
            FileType::Symlink => fs::read_link(&full)?.as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        all.push((
            String::from_utf8_lossy(path).into_owned(),
            stat.st_mode,
            content,
        ));
        Ok(())
    })
    .expect("walked");
    all
}

fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, content).expect("written");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

#[test]
fn what_changed_comes_back_and_nothing_else() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    for path in [
        "kept",
        "d/kept",
        "d/gone",
        "moved/a/b",
        "was_file",
        "was_dir/x",
    ] {
        write(here, path, path);
    }
    write(here, "held/f", "held");
    mode(&here.join("held/f"), 0o444);
    mode(&here.join("held"), 0o555);
    write(here, ".wh.odd", "a name that means something elsewhere");
    let holes = fs::File::create(here.join("holes")).unwrap();
    holes.set_len(1 << 40).unwrap();
    holes.write_at(b"in the middle", 1 << 39).unwrap();
    symlink("kept", here.join("link")).unwrap();
    let known = unpacked(there, &packed(here, b"")).expect("unpacked");
    assert_eq!(shown(there), shown(here));

    write(there, "d/new", "new");
    mode(&there.join("held/f"), 0o644);
    write(there, "held/f", "changed in a directory that is not");
    mode(&there.join("held/f"), 0o444);
    write(there, "kept", "another");
    fs::remove_file(there.join("d/gone")).unwrap();
    fs::rename(there.join("moved"), there.join("renamed")).unwrap();
    fs::remove_file(there.join("was_file")).unwrap();
    write(there, "was_file/inner", "a directory now");
    fs::remove_dir_all(there.join("was_dir")).unwrap();
    fs::write(there.join("was_dir"), "a file now").unwrap();
    fs::remove_file(there.join("link")).unwrap();
    symlink("/etc/passwd", there.join("link")).unwrap();
    write(there, "closed/inside", "closed");
    mode(&there.join("closed/inside"), 0o000);
    mode(&there.join("closed"), 0o555);
    mode(&there.join("d/kept"), 0o755);
    fs::hard_link(there.join("d/new"), there.join("d/same")).unwrap();

    let parcel = packed(there, &known);
    let has = |text: &str| {
        parcel
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(has("a directory now") && !has("a name that means something"));
    let kept = fs::metadata(here.join(".wh.odd")).unwrap();
    unpacked(here, &parcel).expect("unpacked");
    assert_eq!(shown(here), shown(there));
    let now = fs::metadata(here.join(".wh.odd")).unwrap();
    assert_eq!(
        (kept.ino(), kept.ctime_nsec()),
        (now.ino(), now.ctime_nsec())
    );
    let times = |root: &Path| fs::metadata(root.join("kept")).unwrap().modified().unwrap();
    assert_eq!(times(here), times(there));
    for path in ["closed", "held"] {
        mode(&there.join(path), 0o755);
        mode(&here.join(path), 0o755);
    }
}

#[test]
fn a_file_that_comes_back_as_it_was_is_known_by_its_stamp() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    write(here, "d/a", "one");
    write(here, "b", "two");
    let known = unpacked(there, &packed(here, b"")).unwrap();
    let times = fs::metadata(there.join("b")).unwrap().modified().unwrap();
    // The same size and time, another content.
    fs::write(there.join("b"), "owt").unwrap();
    fs::File::options()
        .write(true)
        .open(there.join("b"))
        .and_then(|file| file.set_modified(times))
        .unwrap();
    fs::rename(there.join("d"), there.join("e")).unwrap();
    fs::rename(there.join("e"), there.join("d")).unwrap();
    unpacked(here, &packed(there, &known)).unwrap();
    assert_eq!(fs::read(here.join("b")).unwrap(), b"owt");
    assert_eq!(fs::read(here.join("d/a")).unwrap(), b"one");
}

#[test]
fn no_parcel_leads_outside_and_half_a_parcel_is_none() {
    let place = tempfile::tempdir().unwrap();
    let (root, outside) = (place.path().join("root"), place.path().join("outside"));
    fs::create_dir_all(&root).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    symlink(&outside, root.join("way")).unwrap();
    let file = |path: &str| {
        let mut parcel = PARCEL.to_vec();
        entry(&mut parcel, Kind::Same, b"way").unwrap();
        entry(&mut parcel, Kind::File, path.as_bytes()).unwrap();
        parcel.extend_from_slice(&0o644_u32.to_le_bytes());
        parcel.extend_from_slice(&[0; 16]);
        for number in [3_u64, 0, 3] {
            parcel.extend_from_slice(&number.to_le_bytes());
        }
        parcel.extend_from_slice(b"new");
        parcel.extend_from_slice(&[0; 16]);
        parcel.push(Kind::End as u8);
        parcel
    };
    for path in [
        "../outside/new",
        "/outside/new",
        "way/new",
        "way/kept",
        "a/../b",
        "./a",
        "",
        "a//b",
        "a\0b",
    ] {
        assert!(unpacked(&root, &file(path)).is_err(), "{path:?}");
    }
    assert_eq!(shown(&outside).len(), 1);
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    let whole = file("new");
    for end in 0..whole.len() {
        assert!(unpacked(&root, &whole[..end]).is_err(), "{end}");
    }
    unpacked(&root, &whole).expect("whole");
    // A link that nobody names goes; where it led does not.
    let mut nothing = PARCEL.to_vec();
    nothing.push(Kind::End as u8);
    unpacked(&root, &nothing).expect("nothing");
    assert_eq!((shown(&root).len(), shown(&outside).len()), (0, 1));
    // A part that is not in its file.
    let mut outside = file("new");
    let at = outside.len() - 36;
    outside[at] = 1;
    assert!(unpacked(&root, &outside).is_err());
    let mut failed = PARCEL.to_vec();
    failed.extend_from_slice(&FAILED);
    failed.extend_from_slice(b"`x`: no such luck");
    let said = unpacked(&root, &failed).expect_err("told").to_string();
    assert_eq!(said, "`x`: no such luck");
    // What is as it was there may be gone here: whoever removed it is told of elsewhere.
    let mut same = PARCEL.to_vec();
    entry(&mut same, Kind::Same, b"absent").unwrap();
    entry(&mut same, Kind::Same, b"gone/too").unwrap();
    same.push(Kind::End as u8);
    unpacked(&root, &same).expect("nothing to do");
    let mut within = PARCEL.to_vec();
    entry(&mut within, Kind::Same, b"missing").unwrap();
    within.extend_from_slice(&file("missing/new")[PARCEL.len()..]);
    unpacked(&root, &within).expect("its directory is made");
    assert_eq!(fs::read(root.join("missing/new")).unwrap(), b"new");
}

#[test]
fn modes_depth_and_kinds_are_no_hindrance() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    write(here, "plain", "plain");
    write(here, "piped", "a file, then a pipe");
    let known = unpacked(there, &packed(here, b"")).unwrap();
    for closed in ["m000", "m300", "m600", "m000/inner"] {
        write(there, &format!("{closed}/s"), closed);
    }
    fs::remove_file(there.join("piped")).unwrap();
    let pipe = there.join("piped");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut deep = rustix::fs::open(there, OPEN | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let long = [b'q'; 100];
    for _ in 0..580 {
        rustix::fs::mkdirat(&deep, &long[..], Mode::RWXU).unwrap();
        // One that is looked at on the way back.
        rustix::fs::symlinkat("q", &deep, "z").unwrap();
        deep = descend(deep.as_fd(), &long).unwrap();
    }
    let flags = OPEN | OFlags::WRONLY | OFlags::CREATE;
    let file = rustix::fs::openat(&deep, "f", flags, Mode::RUSR).unwrap();
    File::from(file).write_all(b"at the bottom").unwrap();
    let closed = [
        ("m000/inner", 0),
        ("m000", 0),
        ("m300", 0o300),
        ("m600", 0o600),
    ];
    for (path, bits) in closed {
        mode(&there.join(path), bits);
    }
    let parcel = packed(there, &known);
    for (path, bits) in &closed[1..] {
        let now = fs::metadata(there.join(path)).unwrap().mode() & 0o777;
        assert_eq!(now, *bits, "{path}");
    }
    unpacked(here, &parcel).unwrap();
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for (root, all) in [(here, &mut one), (there, &mut other)] {
        walk(root, Manner::Still, &mut |found| {
            let kind = FileType::from_raw_mode(found.stat.st_mode);
            all.push((found.path.to_vec(), kind));
            Ok(())
        })
        .unwrap();
    }
    assert!(one == other, "{} and {} entries", one.len(), other.len());
    assert!(one.iter().any(|(path, _)| path.len() > 58_000));
    let passed = one.iter().filter(|(path, _)| path.ends_with(b"z"));
    assert_eq!(passed.count(), 580);
    for root in [here, there] {
        for path in ["m000", "m300", "m600", "m000/inner"] {
            mode(&root.join(path), 0o755);
        }
        let top = root.join("q".repeat(100));
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(top)
            .status();
        assert!(removed.unwrap().success());
    }
}

#[test]
fn a_walk_that_fails_closes_what_it_opened() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    write(place, "m/n/x", "x");
    for path in ["m/n", "m"] {
        mode(&place.join(path), 0o300);
    }
    let walked = walk(place, Manner::Still, &mut |found| match found.name {
        b"x" => Err(other("enough")),
        _ => Ok(()),
    });
    assert!(walked.is_err());
    for path in ["m", "m/n"] {
        let now = fs::metadata(place.join(path)).unwrap().mode() & 0o777;
        assert_eq!(now, 0o300, "{path}");
        mode(&place.join(path), 0o755);
    }
}
