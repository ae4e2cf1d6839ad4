//! Files that take the place of a module that a Python runner itself loads.
//!
//! `python3 -m pytest` looks for modules in its directory first. A new `argparse.py` there is run
//! before any test, in the place of the one that the runner asks for.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// Modules of the standard library, of runners and of what those stand on.
const MODULES: &str = "\
    __future__ _abc _aix_support _ast _asyncio _bisect _blake2 _bootsubprocess _bz2 _codecs \
    _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw _collections \
    _collections_abc _compat_pickle _compression _contextvars _crypt _csv _ctypes _curses \
    _curses_panel _datetime _dbm _decimal _elementtree _frozen_importlib \
    _frozen_importlib_external _functools _gdbm _hashlib _heapq _imp _io _json _locale _lsprof \
    _lzma _markupbase _md5 _msi _multibytecodec _multiprocessing _opcode _operator _osx_support \
    _overlapped _pickle _posixshmem _posixsubprocess _py_abc _pydecimal _pyio _pytest _queue \
    _random _scproxy _sha1 _sha256 _sha3 _sha512 _signal _sitebuiltins _socket _sqlite3 _sre _ssl \
    _stat _statistics _string _strptime _struct _symtable _thread _threading_local _tkinter \
    _tokenize _tracemalloc _typing _uuid _warnings _weakref _weakrefset _winapi _zoneinfo abc aifc \
    argparse array ast asynchat asyncio asyncore atexit attr attrs audioop base64 bdb binascii \
    bisect builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections \
    colorama colorsys compileall concurrent configparser contextlib contextvars copy copyreg \
    coverage crypt csv ctypes curses dataclasses datetime dbm decimal difflib dis distutils django \
    doctest email encodings ensurepip enum errno exceptiongroup faulthandler fcntl filecmp \
    fileinput fnmatch fractions ftplib functools gc genericpath getopt getpass gettext glob \
    graphlib grp gzip hashlib heapq hmac html http hypothesis idlelib imaplib imghdr imp importlib \
    iniconfig inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma \
    mailbox mailcap marshal math mimetypes mmap mock modulefinder msilib msvcrt multiprocessing \
    netrc nis nntplib nose nose2 nox nt ntpath nturl2path numbers opcode operator optparse os \
    ossaudiodev packaging pathlib pdb pickle pickletools pip pipes pkg_resources pkgutil platform \
    plistlib pluggy poplib posix posixpath pprint profile pstats pty pwd py py_compile pyclbr \
    pydoc pydoc_data pyexpat pygments pytest pytest_asyncio pytest_cov queue quopri random re \
    readline reprlib resource rlcompleter runpy sched secrets select selectors setuptools shelve \
    shlex shutil signal site six smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile \
    sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau symtable \
    sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap threading time \
    timeit tkinter token tokenize tomli tomllib tox trace traceback tracemalloc tty turtle \
    turtledemo types typing unicodedata unittest urllib uu uuid venv warnings wave weakref \
    webbrowser winreg winsound wsgiref xdist xdrlib xml xmlrpc zipapp zipfile zipimport zlib \
    zoneinfo";

/// Whether a path, seen from where checks run, would be such a module if it were new there.
///
/// HOSTILE: a module may be a file of any kind that Python loads, a package, or a link to one.
pub fn shadows(path: &Path) -> bool {
    static KNOWN: OnceLock<HashSet<&str>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| MODULES.split_whitespace().collect());
    let is_module = |name: &[u8]| {
        let stem = name.split(|&b| b == b'.').next().unwrap_or_default();
        let stem = std::str::from_utf8(stem).unwrap_or_default();
        // As a file system that folds case has it.
        known.contains(stem) || known.contains(&*stem.to_ascii_lowercase())
    };
    let loads = |name: &[u8]| {
        let ends: [&[u8]; 3] = [b".py", b".pyc", b".so"];
        let name = name.to_ascii_lowercase();
        ends.iter().any(|end| name.ends_with(end))
    };
    let parts: Vec<&[u8]> = path.iter().map(|part| part.as_bytes()).collect();
    match parts[..] {
        [name] => is_module(name) && (loads(name) || !name.contains(&b'.')),
        [package, file] => {
            let starts = file.to_ascii_lowercase().starts_with(b"__init__.");
            is_module(package) && !package.contains(&b'.') && starts && loads(file)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_of_the_runner_is_known_where_the_runner_looks_first() {
        for path in [
            "argparse.py",
            "Argparse.PY",
            "pluggy.py",
            "pluggy/__init__.py",
            "_pytest/__init__.pyc",
            "json.cpython-311-x86_64-linux-gnu.so",
            "json/__init__.cpython-311-x86_64-linux-gnu.so",
            // A link to a package.
            "iniconfig",
        ] {
            assert!(shadows(Path::new(path)), "{path}");
        }
        for path in [
            "calc.py",
            "src/argparse.py",
            "json/data.txt",
            "argparse.md",
            "types.ts",
            "argparse.d/__init__.py",
            "",
        ] {
            assert!(!shadows(Path::new(path)), "{path}");
        }
    }
}
