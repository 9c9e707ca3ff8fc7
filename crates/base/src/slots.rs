//! Redis Cluster's slots: by which clients of a cluster find a key's node
//! ([specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/), "Key distribution model").

/// How many slots there are.
pub const SLOTS: u16 = 16384;
/// The polynomial of CRC16/XMODEM.
const POLYNOMIAL: u16 = 0x1021;

/// What each byte makes of a CRC that it meets.
const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            let carry = crc & 0x8000 != 0;
            crc = crc << 1 ^ if carry { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// CRC16/XMODEM: no reflection, beginning with 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key: that of its first `{tag}`, where there is one that is not empty, or of all of it.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let begin = key.iter().position(|&byte| byte == b'{')? + 1;
        let len = key[begin..].iter().position(|&byte| byte == b'}').filter(|len| *len > 0)?;
        Some(&key[begin..begin + len])
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_the_specification_gives_them() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in [
            ("", 0),
            ("foo", 12182),
            ("somekey", 11058),
            ("foo{hash_tag}", 2515),
            ("bar{hash_tag}", 2515),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        let same = |one: &str, other: &str| slot_of(one.as_bytes()) == slot_of(other.as_bytes());
        assert!(same("{user1000}.following", "{user1000}.followers"));
        assert!(same("foo{{bar}}zap", "{bar") && same("foo{bar}{zap}", "bar"));
        assert!(!same("foo{}{bar}", "bar"), "an empty tag counts for nothing");
    }
}
