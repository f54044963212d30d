#!/bin/busybox sh
# Init of L1, the rig's machine.
#
# When /dev/kvm is there it says "ready" on the second serial port and then carries out what comes on it, one command a
# line: TOKEN COMMAND. What a command prints goes to the same port, and after it comes a line of its own: TOKEN STATUS.
# The machine is stored while it waits for its first command. The first serial port is the console.
export PATH=/bin HOME=/tmp
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mkdir /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up

while read -r module; do
    insmod "/modules/$module" || echo "rig: $module does not load"
done < /modules/order

stty -F /dev/ttyS1 raw -echo
exec < /dev/ttyS1 > /dev/ttyS1
if [ -c /dev/kvm ]; then echo ready; else echo "no /dev/kvm"; fi
while read -r token command; do
    sh -c "$command" < /dev/null 2>&1
    printf '\n%s %d\n' "$token" "$?"
done
poweroff -f
