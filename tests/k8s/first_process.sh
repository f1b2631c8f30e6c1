#!/bin/bash
# The first process of a node (node0, node1, ...) or of the machine outside of the cluster (outside): mounts and network of its
# namespaces. All processes of the node end with it. Usage: first_process.sh NAME STATE
set -e
name=$1 state=$2 number=${1#node}
mount --make-rshared /
ip link set lo up
# Files that kubelet, containerd and CNI leave in the machine's folders go to the state's folder.
for folder in /etc /opt /run /var/lib /var/log; do
  over=$state/over/$name$folder
  mkdir -p "$over" "$over.work"
  mount -t overlay -o "lowerdir=$folder,upperdir=$over,workdir=$over.work" rk8s "$folder"
done
if [ "$name" != outside ]; then
  sysctl -qw net.ipv4.ip_forward=1
  if [ "$number" = 0 ]; then
    ip link add lan type bridge; ip addr add 10.88.0.1/24 dev lan; ip link set lan up
    # A default route must exist: Kubernetes asks for the address of its interface.
    ip link add up0 type veth peer name up1; ip link set up0 master lan up; ip link set up1 up
    ip route add default via 10.88.0.254
  fi
  sysctl -qw net.bridge.bridge-nf-call-iptables=1 2> /dev/null || true
  # Kubelet must not change settings of the whole machine: it reads the values that it wants from files.
  mkdir -p /run/rk8s-sys; mount -t tmpfs -o size=1m rk8s /run/rk8s-sys
  for folder in vm kernel; do
    mount --bind /proc/sys/$folder /proc/sys/$folder; mount -o remount,ro,bind /proc/sys/$folder
  done
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
      kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/rk8s-sys/$(echo "${setting%=*}" | tr / .)
    echo "${setting#*=}" > "$file"; mount --bind "$file" "/proc/sys/${setting%=*}"
  done
  for group in /sys/fs/cgroup/*/; do [ -e "$group/cgroup.procs" ] || continue; mkdir -p "$group/rk8s$number"; done
  for file in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$file > "/sys/fs/cgroup/cpuset/rk8s$number/$file"; done
  # Without it, all pods of a node together get the processor time of one process of the machine.
  echo 10240 > "/sys/fs/cgroup/cpu/rk8s$number/cpu.shares"
  mkdir -p /run/rk8s; mount -t tmpfs -o size=64m rk8s /run/rk8s; mkdir -p /run/rk8s/ipam
  hostname "$name"
fi
touch "$state/run/$name.ready"
trap : CHLD
while :; do sleep 3600 & wait $! || true; done   # bash reaps processes whose parents have ended
