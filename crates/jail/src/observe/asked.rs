//! What a shown call asks for, with its addresses still unread.

/// One call of those that the filter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Exec {
        at: At,
        argv: u64,
    },
    Open {
        at: At,
        how: Opening,
    },
    Truncate(At),
    Rename {
        from: At,
        to: At,
        /// The two change places.
        exchange: bool,
    },
    Link {
        from: At,
        to: At,
    },
    Symlink(At),
    Remove(At),
    /// Of a directory, which is not a file and in no change set.
    RemoveDirectory,
    Node(At),
    /// A mode, or an attribute, which may hold one.
    Mode(At),
    /// Nothing: a process or a thread begins.
    Begin,
    /// The filter shows nothing else.
    Unknown,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub creates: bool,
    /// A file without a name, in this directory.
    pub nameless: bool,
}

/// A name: the address of its bytes, and where it starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub directory: Directory,
    /// Zero for what the directory itself stands for.
    pub name: u64,
    /// The last part may be a link that is followed.
    pub follows: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    Working,
    Descriptor(i32),
}

impl Directory {
    fn of(argument: u64) -> Self {
        // The kernel takes 32 bits of it.
        match argument as i32 {
            libc::AT_FDCWD => Self::Working,
            fd => Self::Descriptor(fd),
        }
    }
}

impl Asked {
    /// Reads a call by its number and arguments.
    pub(super) fn of(number: libc::c_long, a: [u64; 6]) -> Self {
        let plain = |name: u64| At {
            directory: Directory::Working,
            name,
            follows: true,
        };
        let at = |directory: u64, name: u64| At {
            directory: Directory::of(directory),
            name,
            follows: true,
        };
        let entry = |at: At| At {
            follows: false,
            ..at
        };
        let unless = |flags: u64, bit: i32| flags as i32 & bit == 0;
        #[cfg(target_arch = "x86_64")]
        match number {
            libc::SYS_open => return open(plain(a[0]), a[1]),
            libc::SYS_creat => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                return open(plain(a[0]), flags as u64);
            }
            libc::SYS_unlink => return Self::Remove(entry(plain(a[0]))),
            libc::SYS_rename => {
                return Self::Rename {
                    from: entry(plain(a[0])),
                    to: entry(plain(a[1])),
                    exchange: false,
                };
            }
            libc::SYS_link => {
                return Self::Link {
                    from: entry(plain(a[0])),
                    to: entry(plain(a[1])),
                };
            }
            libc::SYS_symlink => return Self::Symlink(entry(plain(a[1]))),
            libc::SYS_mknod => return Self::Node(entry(plain(a[0]))),
            libc::SYS_chmod => return Self::Mode(plain(a[0])),
            _ => {}
        }
        match number {
            libc::SYS_set_robust_list => Self::Begin,
            libc::SYS_execve => Self::Exec {
                at: plain(a[0]),
                argv: a[1],
            },
            libc::SYS_execveat => Self::Exec {
                at: At {
                    follows: unless(a[4], libc::AT_SYMLINK_NOFOLLOW),
                    ..at(a[0], a[1])
                },
                argv: a[2],
            },
            libc::SYS_openat => open(at(a[0], a[1]), a[2]),
            libc::SYS_truncate => Self::Truncate(plain(a[0])),
            libc::SYS_unlinkat if unless(a[2], libc::AT_REMOVEDIR) => {
                Self::Remove(entry(at(a[0], a[1])))
            }
            libc::SYS_unlinkat => Self::RemoveDirectory,
            libc::SYS_renameat | libc::SYS_renameat2 => Self::Rename {
                from: entry(at(a[0], a[1])),
                to: entry(at(a[2], a[3])),
                exchange: number == libc::SYS_renameat2 && a[4] as u32 & libc::RENAME_EXCHANGE != 0,
            },
            libc::SYS_linkat => Self::Link {
                from: At {
                    follows: !unless(a[4], libc::AT_SYMLINK_FOLLOW),
                    ..at(a[0], a[1])
                },
                to: entry(at(a[2], a[3])),
            },
            libc::SYS_symlinkat => Self::Symlink(entry(at(a[1], a[2]))),
            libc::SYS_mknodat => Self::Node(entry(at(a[0], a[1]))),
            libc::SYS_fchmod | libc::SYS_fsetxattr => Self::Mode(at(a[0], 0)),
            libc::SYS_setxattr => Self::Mode(plain(a[0])),
            libc::SYS_lsetxattr => Self::Mode(entry(plain(a[0]))),
            libc::SYS_fchmodat => Self::Mode(at(a[0], a[1])),
            libc::SYS_fchmodat2 => Self::Mode(At {
                follows: unless(a[3], libc::AT_SYMLINK_NOFOLLOW),
                ..at(a[0], a[1])
            }),
            _ => Self::Unknown,
        }
    }
}

fn open(at: At, flags: u64) -> Asked {
    let has = |bits: i32| flags as i32 & bits == bits;
    let exclusive = has(libc::O_CREAT | libc::O_EXCL);
    Asked::Open {
        at: At {
            follows: !has(libc::O_NOFOLLOW) && !exclusive,
            ..at
        },
        how: Opening {
            creates: has(libc::O_CREAT),
            nameless: has(libc::O_TMPFILE),
        },
    }
}
