//! Keys in base64, as meta commands may send them: the usual alphabet, with padding.

/// What a byte of the text stands for.
fn digit(byte: u8) -> Option<u32> {
    let digit = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(digit))
}

/// Decodes `text` into `out`, which has room for three bytes for every four; how many there are.
/// `None`: the text is not base64, or is empty.
pub(super) fn decode(text: &[u8], out: &mut [u8]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|&&byte| byte == b'=').count();
    let mut len = 0;
    for (at, four) in text.chunks_exact(4).enumerate() {
        let is_last = (at + 1) * 4 == text.len();
        let pads = if is_last { padding } else { 0 };
        let mut bits = 0;
        for (place, &byte) in four.iter().enumerate() {
            let value = if place >= 4 - pads { 0 } else { digit(byte)? };
            bits = bits << 6 | value;
        }
        let bytes = bits.to_be_bytes();
        let count = 3 - pads;
        out.get_mut(len..len + count)?.copy_from_slice(&bytes[1..1 + count]);
        len += count;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn text_is_decoded_or_refused() {
        let mut out = [0; 16];
        for (text, bytes) in [
            ("Zm9v", &b"foo"[..]),
            ("Zm8=", b"fo"),
            ("Zg==", b"f"),
            ("Zm9vYmE=", b"fooba"),
            ("//4=", b"\xff\xfe"),
            ("AAAA", b"\0\0\0"),
        ] {
            let len = decode(text.as_bytes(), &mut out).expect(text);
            assert_eq!(&out[..len], bytes, "{text}");
        }
        for text in ["", "Z", "Zm9", "Zm9v=", "Z===", "====", "Zm=v", "Z!9v", "Zm9vZ", "Zg==Zg=="] {
            assert_eq!(decode(text.as_bytes(), &mut out), None, "{text}");
        }
    }
}
