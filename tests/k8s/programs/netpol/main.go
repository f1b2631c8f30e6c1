// NetworkPolicies of one node, enforced by kube-router's controller without the rest of kube-router.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	rest, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	must(err)
	client, err := kubernetes.NewForConfig(rest)
	must(err)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	stop, heartbeats := make(chan struct{}), make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range heartbeats {
		}
	}()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	must(err)
	var mutex sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &mutex, tables, sets)
	must(err)
	_, err = pods.AddEventHandler(controller.PodEventHandler)
	must(err)
	_, err = namespaces.AddEventHandler(controller.NamespaceEventHandler)
	must(err)
	_, err = policies.AddEventHandler(controller.NetworkPolicyEventHandler)
	must(err)
	var group sync.WaitGroup
	group.Add(1)
	go controller.Run(heartbeats, stop, &group)
	select {}
}
