//! Reading the memory of a process that waits.

use rustix::io::Errno;

/// Reads from an address, up to the first byte that is not there; gives how much it read, or that a process
/// lets nobody look into it.
///
/// HOSTILE: nothing inside can make this wait: there is neither FUSE nor userfaultfd.
pub fn read_memory(thread: i32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let ours = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let theirs = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes only into our buffer; the other address is theirs and checked by it.
    let count =
        unsafe { libc::process_vm_readv(thread, &raw const ours, 1, &raw const theirs, 1, 0) };
    usize::try_from(count).or_else(|_| match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM) => Err(Errno::PERM),
        _ => Ok(0),
    })
}
