//! Tars that are what they should be, and many that are not.

mod bounds;

use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::*;

const BOUNDS: Bounds = Bounds {
    entries: 1000,
    names: 64 << 10,
    bytes: 16 << 20,
    ratio: 100,
    ratio_from: 1 << 20,
};

/// A header with a right checksum.
pub(crate) fn header(kind: u8, name: &[u8], size: u64, link: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0001750");
    header[116..123].copy_from_slice(b"0001750");
    header[124..136].copy_from_slice(format!("{size:011o} ").as_bytes());
    header[136..147].copy_from_slice(b"00000001750");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link);
    header[257..265].copy_from_slice(b"ustar\x0000");
    sum(&mut header);
    header
}

fn sum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn with_mode(kind: u8, name: &[u8], mode: &[u8; 7]) -> Vec<u8> {
    let mut made = header(kind, name, 0, b"");
    made[100..107].copy_from_slice(mode);
    sum(&mut made);
    made
}

fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    padded(header(b'0', name, content.len() as u64, b""), content)
}

fn padded(mut head: Vec<u8>, content: &[u8]) -> Vec<u8> {
    head.extend_from_slice(content);
    head.resize(head.len().next_multiple_of(512), 0);
    head
}

fn directory(name: &[u8]) -> Vec<u8> {
    with_mode(b'5', name, b"0000755")
}

fn link(name: &[u8], target: &[u8]) -> Vec<u8> {
    header(b'2', name, 0, target)
}

fn hard(name: &[u8], target: &[u8]) -> Vec<u8> {
    header(b'1', name, 0, target)
}

fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length += 1;
        }
        content.extend_from_slice(format!("{length} {key}=").as_bytes());
        content.extend_from_slice(value);
        content.push(b'\n');
    }
    padded(header(b'x', b"pax", content.len() as u64, b""), &content)
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = parts.concat();
    tar.resize(tar.len() + 1024, 0);
    tar
}

struct Made {
    directory: tempfile::TempDir,
    unpacked: Unpacked,
}

impl Made {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("layer").join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn notes(&self) -> Vec<(&'static str, u64)> {
        let notes = &self.unpacked.notes;
        notes.iter().map(|note| (note.what, note.count)).collect()
    }

    fn is_opaque(&self, name: &str) -> bool {
        let mut value = [0; 8];
        rustix::fs::getxattr(self.path(name), OPAQUE, &mut value).is_ok_and(|length| length == 1)
    }
}

fn open(directory: &Path) -> OwnedFd {
    let layer = directory.join("layer");
    std::fs::create_dir(&layer).unwrap();
    rustix::fs::open(layer, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn try_unpack(tar: &[u8], bounds: Bounds) -> (tempfile::TempDir, Result<Unpacked, UnpackError>) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("outside"), "untouched").unwrap();
    let root = open(directory.path());
    let unpacked = unpack(
        tar,
        root,
        bounds,
        &Spent::default(),
        Owners::of_this_process(),
    );
    let outside = std::fs::read_to_string(directory.path().join("outside")).unwrap();
    assert_eq!(outside, "untouched");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    (directory, unpacked)
}

fn unpack_parts(parts: &[Vec<u8>]) -> Made {
    let (directory, unpacked) = try_unpack(&archive(parts), BOUNDS);
    Made {
        directory,
        unpacked: unpacked.unwrap(),
    }
}

fn refusal(parts: &[Vec<u8>]) -> String {
    let (_directory, unpacked) = try_unpack(&archive(parts), BOUNDS);
    unpacked.unwrap_err().to_string()
}

#[test]
fn a_layer_is_what_its_tar_says() {
    let made = unpack_parts(&[
        directory(b"./"),
        directory(b"bin/"),
        file(b"bin/tool", b"#!/bin/sh\n"),
        link(b"bin/sh", b"/bin/tool"),
        hard(b"bin/other", b"bin/tool"),
        file(b"deep/er/file", b"x"),
        with_mode(b'5', b"closed", b"0000000"),
        file(b"closed/inside", b"y"),
        with_mode(b'5', b"tmp", b"0001777"),
    ]);
    assert_eq!(made.read("bin/tool"), "#!/bin/sh\n");
    assert_eq!(
        std::fs::read_link(made.path("bin/sh")).unwrap(),
        Path::new("/bin/tool")
    );
    let (one, other) = (
        made.path("bin/tool").metadata().unwrap(),
        made.path("bin/other").metadata().unwrap(),
    );
    assert_eq!(one.ino(), other.ino());
    assert_eq!((one.mode() & 0o7777, one.mtime()), (0o644, 0o1750));
    assert_eq!(made.path("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    let closed = made.path("closed").metadata().unwrap().mode() & 0o7777;
    if rustix::process::geteuid().is_root() {
        assert_eq!((one.uid(), closed), (0o1750, 0));
    } else {
        let ours = rustix::process::geteuid().as_raw();
        assert_eq!((one.uid(), closed), (ours, 0o500));
    }
    let expected: [u8; 32] = Sha256::digest(b"#!/bin/sh\n").into();
    assert_eq!(made.unpacked.list[&b"bin/other"[..]].hash, expected);
    assert!(made.unpacked.list.contains_key(&b"deep/er"[..]));
    assert!(made.notes().is_empty());
    assert_eq!(
        crate::images::list::read(&crate::images::list::write(&made.unpacked.list)).unwrap(),
        made.unpacked.list
    );
}

#[test]
fn compressed_layers_have_the_digest_of_what_they_unpack_to() {
    let tar = archive(&[file(b"a", &[b'x'; 100_000])]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&tar[..], level);
    // Frames that are to be skipped, and a layer in two frames.
    let (first, second) = tar.split_at(70_000);
    let two = [
        b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(),
        ruzstd::encoding::compress_to_vec(first, level),
        b"\x5f\x2a\x4d\x18\x01\0\0\0z".to_vec(),
        ruzstd::encoding::compress_to_vec(second, level),
    ]
    .concat();
    let expected: [u8; 32] = Sha256::digest(&tar).into();
    for packed in [&tar, &gzip, &zstd, &two] {
        let (_directory, unpacked) = try_unpack(packed, BOUNDS);
        assert_eq!(unpacked.unwrap().diff, Digest::from_bytes(expected));
    }
    for packed in [&gzip, &zstd, &two] {
        let (_directory, unpacked) = try_unpack(&packed[..packed.len() / 2], BOUNDS);
        unpacked.unwrap_err();
    }
}

#[test]
fn whiteouts_become_the_overlays_own() {
    let made = unpack_parts(&[
        file(b"dir/.wh.gone", b""),
        file(b"empty/.wh..wh..opq", b""),
        file(b"empty/kept", b"k"),
        // In one layer, what is there wins, whatever comes first.
        file(b"a", b"a"),
        file(b".wh.a", b""),
        file(b".wh.b", b""),
        file(b"b", b"b"),
        directory(b"c"),
        file(b".wh.c", b""),
        file(b".wh.d", b""),
        file(b"d/inside", b"i"),
        file(b".wh..wh.plnk/1.2", b""),
    ]);
    let gone = made.path("dir/gone").symlink_metadata().unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert!(made.is_opaque("empty") && !made.is_opaque("dir"));
    assert_eq!(made.read("empty/kept"), "k");
    assert_eq!((made.read("a"), made.read("b")), ("a".into(), "b".into()));
    assert!(made.is_opaque("c") && made.is_opaque("d"));
    assert_eq!(made.read("d/inside"), "i");
    assert!(!made.path("dir/.wh.gone").exists());
    assert!(!made.path(".wh..wh.plnk").exists());
    let kind = |path: &[u8]| made.unpacked.list[path].kind;
    assert_eq!(kind(b"dir/gone"), ListedKind::Whiteout);
    assert_eq!(kind(b"empty"), ListedKind::OpaqueDirectory);
}

#[test]
fn names_that_lead_out_are_refused() {
    for (parts, why) in [
        (vec![file(b"../outside", b"x")], "climbs"),
        (vec![file(b"a/../../outside", b"x")], "climbs"),
        (vec![file(b"/etc/passwd", b"x")], "starts at `/`"),
        (
            vec![link(b"l", b".."), file(b"l/outside", b"x")],
            "through a link",
        ),
        (
            vec![link(b"l", b"/"), directory(b"l/etc")],
            "through a link",
        ),
        (
            vec![link(b"l", b"/tmp"), file(b"l/.wh.a", b"")],
            "through a link",
        ),
        (
            vec![link(b"l", b"/tmp"), file(b"l/.wh..wh..opq", b"")],
            "through a link",
        ),
        (
            vec![link(b"l", b".."), hard(b"h", b"l/outside")],
            "not in this layer",
        ),
        (vec![hard(b"h", b"../outside")], "not in this layer"),
        (vec![hard(b"h", b"/etc/passwd")], "not in this layer"),
        (vec![directory(b"d"), hard(b"h", b"d")], "not in this layer"),
        (vec![hard(b"h", b"h")], "not in this layer"),
        (
            vec![file(b".wh.x", b""), hard(b"h", b"x")],
            "not in this layer",
        ),
        (vec![file(b"f", b""), file(b"f/x", b"")], "through a file"),
        (
            vec![directory(b"d"), file(b"d", b"")],
            "place of a directory",
        ),
        (
            vec![file(b"d/x", b""), link(b"d", b"..")],
            "place of a directory",
        ),
        (vec![link(b"l", b"")], "empty or too long"),
        (
            vec![pax(&[("path", b"../outside")]), file(b"ok", b"x")],
            "climbs",
        ),
        (
            vec![pax(&[("linkpath", b"../outside")]), hard(b"h", b"ok")],
            "not in this layer",
        ),
        (
            vec![
                padded(header(b'L', b"x", 10, b""), b"../outside"),
                file(b"ok", b"x"),
            ],
            "climbs",
        ),
    ] {
        let said = refusal(&parts);
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn a_link_that_is_replaced_by_a_directory_leads_nowhere() {
    let made = unpack_parts(&[
        link(b"l", b".."),
        directory(b"l"),
        file(b"l/outside", b"mine"),
    ]);
    assert_eq!(made.read("l/outside"), "mine");
}

#[test]
fn the_last_of_several_entries_counts_and_others_keep_their_content() {
    let made = unpack_parts(&[
        file(b"a", b"first"),
        hard(b"b", b"a"),
        file(b"a", b"second"),
        link(b"c", b"/elsewhere"),
        file(b"c", b"file now"),
        file(b"d", b"file"),
        link(b"d", b"a"),
    ]);
    assert_eq!(made.read("a"), "second");
    assert_eq!(made.read("b"), "first");
    assert_eq!(made.read("c"), "file now");
    assert_eq!(made.unpacked.list[&b"d"[..]].kind, ListedKind::Symlink);
}

#[test]
fn what_could_give_power_is_left_out_and_told() {
    let made = unpack_parts(&[
        with_mode(b'0', b"su", b"0004755"),
        with_mode(b'0', b"sg", b"0002755"),
        header(b'3', b"null", 0, b""),
        header(b'4', b"disk", 0, b""),
        header(b'6', b"pipe", 0, b""),
        pax(&[
            ("SCHILY.xattr.user.fine", b"yes"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ]),
        directory(b"d"),
        pax(&[("uid", b"4000000000"), ("gid", b"5")]),
        file(b"foreign", b""),
    ]);
    assert_eq!(made.path("su").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(made.path("sg").metadata().unwrap().mode() & 0o7777, 0o755);
    for gone in ["null", "disk", "pipe"] {
        assert!(made.path(gone).symlink_metadata().is_err(), "{gone}");
    }
    assert!(!made.is_opaque("d"));
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(made.path("d"), "user.fine", &mut value).unwrap();
    assert_eq!(&value[..length], b"yes");
    for hidden in [
        "user.overlay.redirect",
        "security.capability",
        "trusted.overlay.opaque",
    ] {
        assert!(rustix::fs::getxattr(made.path("d"), hidden, &mut value).is_err());
    }
    let mut expected = vec![
        ("a set-user-id or set-group-id bit, dropped", 2),
        ("a device", 2),
        ("a FIFO", 1),
        ("an attribute that is not the user's, dropped", 4),
    ];
    if rustix::process::geteuid().is_root() {
        expected.push(("an owner over 65535, now nobody", 1));
        let owner = made.path("foreign").metadata().unwrap();
        assert_eq!((owner.uid(), owner.gid()), (65534, 5));
    }
    assert_eq!(made.notes(), expected);
}

#[test]
fn long_names_of_every_form_are_read() {
    let long = "n".repeat(200);
    let mut prefixed = header(b'0', b"name", 1, b"");
    prefixed[345..351].copy_from_slice(b"prefix");
    sum(&mut prefixed);
    let gnu = format!("{long}/gnu");
    let made = unpack_parts(&[
        padded(
            header(b'L', b"././@LongLink", gnu.len() as u64, b""),
            gnu.as_bytes(),
        ),
        file(b"cut", b"gnu"),
        pax(&[
            ("path", format!("{long}/pax").as_bytes()),
            ("mtime", b"12.5"),
        ]),
        file(b"cut", b"pax"),
        padded(prefixed, b"u"),
        padded(header(b'K', b"././@LongLink", 200, b""), long.as_bytes()),
        link(b"link", b"cut"),
        padded(header(b'g', b"global", 20, b""), b"20 comment=whatever\n"),
        file(b"after", b""),
    ]);
    assert_eq!(made.read(&gnu), "gnu");
    assert_eq!(made.read(&format!("{long}/pax")), "pax");
    let time = made.path(&format!("{long}/pax")).metadata().unwrap();
    assert_eq!((time.mtime(), time.mtime_nsec()), (12, 500_000_000));
    assert_eq!(made.read("prefix/name"), "u");
    assert_eq!(
        std::fs::read_link(made.path("link")).unwrap(),
        Path::new(&long)
    );
    assert_eq!(made.read("after"), "");
}

#[test]
fn sparse_files_have_their_holes() {
    let sparse = |size: u64, start: u64, length: u64, content: &[u8]| {
        let mut head = header(b'S', b"sparse", content.len() as u64, b"");
        head[257..265].copy_from_slice(b"ustar  \0");
        head[386..397].copy_from_slice(format!("{start:011o}").as_bytes());
        head[398..409].copy_from_slice(format!("{length:011o}").as_bytes());
        head[483..494].copy_from_slice(format!("{size:011o}").as_bytes());
        sum(&mut head);
        padded(head, content)
    };
    let made = unpack_parts(&[sparse(1 << 20, 1 << 19, 4, b"data"), file(b"b", b"b")]);
    let content = std::fs::read(made.path("sparse")).unwrap();
    assert_eq!(content.len(), 1 << 20);
    assert_eq!(&content[1 << 19..(1 << 19) + 4], b"data");
    assert!(made.path("sparse").metadata().unwrap().blocks() < 100);
    assert_eq!(made.read("b"), "b");
    let hash: [u8; 32] = Sha256::digest(&content).into();
    assert_eq!(made.unpacked.list[&b"sparse"[..]].hash, hash);
    assert!(refusal(&[sparse(10, 8, 4, b"data")]).contains("sparse"));
    assert!(refusal(&[sparse(100, 8, 5, b"data")]).contains("sparse"));
    assert!(refusal(&[sparse(1 << 30, 0, 4, b"data")]).contains("more than"));
    let pax_sparse = pax(&[("GNU.sparse.major", b"1")]);
    assert!(refusal(&[pax_sparse, file(b"a", b"")]).contains("sparse"));
}

#[test]
fn damaged_archives_are_refused() {
    let good = archive(&[file(b"a", &[b'x'; 2000])]);
    for cut in [100, 600, 2000] {
        let (_directory, unpacked) = try_unpack(&good[..cut], BOUNDS);
        let error = unpacked.unwrap_err().to_string();
        assert!(error.contains("ends in the middle"), "{cut}: {error}");
    }
    let mut flipped = good.clone();
    flipped[0] ^= 1;
    let (_directory, unpacked) = try_unpack(&flipped, BOUNDS);
    assert!(unpacked.unwrap_err().to_string().contains("not a tar"));
    for (parts, why) in [
        (vec![header(b'L', b"x", 1 << 30, b"")], "for a name"),
        (vec![header(b'x', b"x", 1 << 30, b"")], "for pax records"),
        (
            vec![padded(header(b'x', b"x", 9, b""), b"99 path=x")],
            "pax records",
        ),
        (
            vec![padded(header(b'x', b"x", 5, b""), b"path=")],
            "pax records",
        ),
        (
            vec![pax(&[("size", b"-5")]), file(b"a", b"")],
            "pax records",
        ),
        (vec![header(b'Z', b"x", 0, b"")], "unknown kind"),
        (
            vec![pax(&[("size", b"18446744073709551615")]), file(b"a", b"")],
            "more than",
        ),
    ] {
        let said = refusal(&parts);
        assert!(said.contains(why), "{why}: {said}");
    }
}
