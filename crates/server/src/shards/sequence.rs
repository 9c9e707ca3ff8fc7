//! Numbers of frames in one direction of a connection between processes: each is taken in once, and in order.

/// Whether a frame is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameArrival {
    /// It is the next one.
    Next,
    /// It has come before: it is dropped.
    Again,
    /// One before it is missing: the connection is of no use any more.
    BehindMissing,
}

/// Counts the frames of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameSequence {
    next: u64,
}

impl FrameSequence {
    /// The number of the next frame that is sent.
    pub(crate) fn stamp(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// A frame of this number has come.
    pub(crate) fn arrives(&mut self, number: u64) -> FrameArrival {
        if number < self.next {
            FrameArrival::Again
        } else if number > self.next {
            FrameArrival::BehindMissing
        } else {
            self.next += 1;
            FrameArrival::Next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_taken_in_once_and_in_order() {
        let (mut sent, mut received) = (FrameSequence::default(), FrameSequence::default());
        let numbers: Vec<u64> = (0..4).map(|_| sent.stamp()).collect();
        assert_eq!(received.arrives(numbers[0]), FrameArrival::Next);
        assert_eq!(received.arrives(numbers[0]), FrameArrival::Again);
        assert_eq!(received.arrives(numbers[1]), FrameArrival::Next);
        assert_eq!(received.arrives(numbers[3]), FrameArrival::BehindMissing);
        assert_eq!(received.arrives(numbers[2]), FrameArrival::Next);
    }
}
