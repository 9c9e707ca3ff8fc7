//! Fields of what a key of the bucket says.

use alloc::string::String;

/// The next bytes.
pub(crate) fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

/// A text, behind its length.
pub(crate) fn text(rest: &mut &[u8]) -> Option<String> {
    let length = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
    String::from_utf8(take(rest, length.into())?.to_vec()).ok()
}

/// A number, little-endian.
pub(crate) fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}
